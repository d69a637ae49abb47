#pragma once

#include <memory>
#include <vector>

#include "distributed/arrival_order.h"
#include "distributed/gradient_exchange.h"
#include "distributed/gradient_hook.h"
#include "sharding/gradient_shards.h"

namespace fulgur::detail {

/// Averages gradients unit by unit, each as soon as backward has computed the gradients of all its parameters and those
/// of the units before it. The order is the one in which the first backward of the first share computed them.
class UnitReducer final : public GradientExchange {
 public:
  /// `find_unused`: parameters may get no gradient in a backward, which costs an exchange; nullopt: the strategy has no
  /// such option.
  UnitReducer(ShardGroups& groups, DividedUnits& shards, std::vector<NamedParameter> parameters,
              std::optional<at::ScalarType> reduce_dtype, std::optional<bool> find_unused);
  ~UnitReducer() override;

  void before_backward(const Tensor& loss) override;
  void after_backward() override;

 private:
  struct Unit {
    size_t number = 0;             // in the shards
    std::vector<uint8_t> awaited;  // of each parameter: whether it belongs to this reducer and has no gradient yet
    size_t missing = 0;            // gradients
    std::vector<uint8_t> wanted;   // of each parameter: whether it belongs to this reducer
  };
  void take(size_t unit, size_t index);
  /// Those that `awaited` still names.
  std::vector<std::string> without_gradient() const;

  ShardGroups& groups_;
  DividedUnits& shards_;
  GradientShards gradients_;
  bool has_option_, find_unused_, active_ = false;
  std::vector<Unit> units_;
  ArrivalOrder order_;  // of units_
  std::vector<std::unique_ptr<GradientHook>> hooks_;
};

}  // namespace fulgur::detail
