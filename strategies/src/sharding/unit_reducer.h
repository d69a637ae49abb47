#pragma once

#include <memory>
#include <vector>

#include "distributed/gradient_exchange.h"
#include "sharding/gradient_shards.h"

namespace fulgur::detail {

/// Averages gradients unit by unit, each as soon as backward has computed the gradients of all its parameters and those
/// of the units before it. The order is the one in which the first backward of rank 0 computed them.
class UnitReducer final : public GradientExchange {
 public:
  /// `find_unused`: parameters may get no gradient in a backward, which costs an exchange.
  UnitReducer(ShardGroups& groups, DividedUnits& shards, std::vector<NamedParameter> parameters,
              std::optional<at::ScalarType> reduce_dtype, bool find_unused);
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
  struct Hook;
  void take(size_t unit, size_t index);
  void start_next();
  void learn_order();
  /// Those that `awaited` still names.
  std::vector<std::string> without_gradient() const;

  ShardGroups& groups_;
  DividedUnits& shards_;
  GradientShards gradients_;
  bool find_unused_, active_ = false, knows_order_ = false;
  std::vector<Unit> units_;
  std::vector<size_t> order_, arrived_;  // indices of units_
  size_t next_ = 0;                      // in order_
  std::vector<std::unique_ptr<Hook>> hooks_;
};

}  // namespace fulgur::detail
