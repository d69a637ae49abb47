#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/divided_units.h"

namespace fulgur::detail {

/// Gives each rank the averages of its part of the gradients, over all parts of all copies, and frees the gradients of
/// the parameters (ZeRO, stage 2: Rajbhandari et al., 2020). The exchange of a unit runs while the caller computes,
/// until that of the next one starts: there is memory for one at a time.
class GradientShards {
 public:
  /// Gradients are sent in `reduce_dtype`; nullopt: in their own. All references must outlive this.
  GradientShards(ShardGroups& groups, DividedUnits& shards, std::optional<at::ScalarType> reduce_dtype)
      : groups_(groups), shards_(shards), reduce_dtype_(reduce_dtype) {}

  /// Starts the exchange of a unit. `has_gradient` has an element for each of its parameters: those without a gradient
  /// keep none; those with one on other ranks only count as zero here. All ranks must call it, in the same order.
  /// Throws a ConfigError that names a sparse gradient.
  void start(size_t unit, const std::vector<uint8_t>& has_gradient);
  /// Ends the last exchange: afterwards the shards have their gradients, which are added to those that they had.
  void end();
  /// Forgets the exchanges of a backward that has failed.
  void drop() noexcept { on_its_way_.reset(); }
  /// Averages the gradients that `parameters`, which are all of their units, have on any rank. To know which, the ranks
  /// exchange flags, for which the host waits, unless `may_be_missing` is false: all ranks have the same.
  void average(const std::vector<Tensor>& parameters, bool may_be_missing = true);

 private:
  struct Exchange {
    size_t unit;
    std::vector<uint8_t> has_gradient;
    Tensor buffer, own;
    c10::intrusive_ptr<c10d::Work> work;
  };
  /// The gradients of a unit, divided by the number of ranks; those of `has_gradient` have none afterwards.
  Tensor take_gradients(size_t unit, const std::vector<uint8_t>& has_gradient);
  /// Ends the exchange on its way.
  void finish();

  ShardGroups& groups_;
  DividedUnits& shards_;
  std::optional<at::ScalarType> reduce_dtype_;
  std::optional<Exchange> on_its_way_;
};

}  // namespace fulgur::detail
