#pragma once

#include <utility>
#include <vector>

#include "distributed/process_group_impl.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/strategies/ddp.h"

namespace fulgur::detail {

/// The size of blocks that no option sets.
inline constexpr double kBlockMiB = 25;

/// Averages tensors over ranks in blocks, such as gradients after the backward pass.
class TensorAverage {
 public:
  /// Blocks of `bucket_cap_mb`. With `compression`, tensors of real numbers are sent in half the bytes.
  TensorAverage(double bucket_cap_mb, DDPStrategy::Compression compression)
      : block_bytes_(static_cast<int64_t>(bucket_cap_mb * 1024 * 1024)), compression_(compression) {}

  /// Allocates the blocks for the gradients of `parameters`, so that `average` does not: if that failed on one rank,
  /// the others would wait for it.
  void reserve(const std::vector<Tensor>& parameters);
  /// Averages the gradients of `parameters`. All ranks must call it, with the same parameters. A parameter that has a
  /// gradient on only some ranks counts as zero on the others; one without a gradient on any rank keeps none. To know
  /// which, the ranks exchange flags, for which the host waits, unless `may_be_missing` is false.
  void average_gradients(const std::vector<Tensor>& parameters, C10dCollectives& ranks, bool may_be_missing = true);
  /// Averages tensors in place. All ranks must call it, with tensors of the same sizes and types.
  void average(const std::vector<Tensor>& tensors, C10dCollectives& ranks);

 private:
  /// The dtype that is sent, and the device.
  using Kind = std::pair<at::ScalarType, at::Device>;
  Kind kind_of(const Tensor& tensor) const;
  /// The memory of a block for `numel` elements, or for as many of them as fit in a block.
  Tensor block(const Kind& kind, int64_t numel);
  void average_alike(const Kind& kind, const std::vector<Tensor>& tensors, C10dCollectives& ranks);

  int64_t block_bytes_;
  DDPStrategy::Compression compression_;
  std::vector<std::pair<Kind, Tensor>> blocks_;
};

/// The module's parameters in `optimizer`.
std::vector<Tensor> parameters_of(const Optimizer& optimizer);
/// Those that have a gradient on any rank. All ranks must call it, with the same parameters.
std::vector<Tensor> parameters_with_gradient(const std::vector<Tensor>& parameters, Collectives& ranks);

}  // namespace fulgur::detail
