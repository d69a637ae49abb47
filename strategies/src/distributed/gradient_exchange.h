#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

/// Every parameter must get a gradient in a backward that exchanges them; on this rank those with `names` got none.
/// `has_option`: the strategy has find_unused_parameters.
inline DistributedError no_gradient_error(const std::vector<std::string>& names, int64_t rank,
                                          std::string_view strategy = "ddp", bool has_option = true) {
  return DistributedError(cat(
      "[strategies.", strategy, "] every parameter must get a gradient in each backward that ends a window; on rank ",
      rank, " these got none: ", join(names), ". Remove them from the module, ",
      has_option ? "set requires_grad to false, or set "
                   "trainer.strategy.init_args.find_unused_parameters: true, an option of ddp and fsdp."
                 : "or set requires_grad to false."));
}

using Buckets = std::vector<std::vector<int64_t>>;

/// Averages the gradients of some parameters over ranks while backward computes.
class GradientExchange {
 public:
  explicit GradientExchange(std::vector<NamedParameter> parameters) : parameters_(std::move(parameters)) {}
  virtual ~GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  virtual void before_forward() {}
  /// Call before a backward whose gradients are to be averaged.
  virtual void before_backward(const Tensor& loss) = 0;
  /// Call after it. Throws a DistributedError that names the parameters that got no gradient in this backward.
  virtual void after_backward() = 0;
  /// Indices of parameters that are exchanged together, as far as sums depend on them; else empty.
  virtual Buckets buckets() const { return {}; }

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  bool holds_any_of(const std::vector<Tensor>& tensors) const {
    return std::ranges::any_of(parameters_, [&](const auto& p) {
      return std::ranges::any_of(tensors, [&](const Tensor& t) { return t.is_same(p.value); });
    });
  }
  bool needs_any_gradient() const {
    return std::ranges::any_of(parameters_, [](const auto& p) { return p.value.requires_grad(); });
  }

 private:
  std::vector<NamedParameter> parameters_;
};

}  // namespace fulgur::detail
