#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distributed/gradient_exchange.h"
#include "fulgur/strategies/ddp.h"

namespace fulgur::detail {

class C10dCollectives;

/// LibTorch's Reducer over some parameters: averages their gradients over ranks, bucket by bucket, while backward
/// computes.
class GradientReducer final : public GradientExchange {
 public:
  /// With `buckets` (indices of parameters) of an earlier Reducer; empty: by size, which `options` has as a number.
  GradientReducer(C10dCollectives& ranks, std::vector<NamedParameter> parameters, const DDPStrategy::Options& options,
                  const Buckets& buckets);
  ~GradientReducer() override;

  void before_forward() override;
  /// Calls `awaited` in the following backward of `loss`, when all gradients of this rank are computed and the Reducers
  /// begin to wait for the exchange. Call before `before_backward` of the Reducers.
  static void call_before_wait(const Tensor& loss, std::function<void()> awaited);
  void before_backward(const Tensor& loss) override;
  void after_backward() override;
  Buckets buckets() const override;

 private:
  std::vector<std::string> without_gradient(const std::string& message) const;

  struct Impl;
  int64_t rank_;
  bool find_unused_, static_graph_, began_ = false;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::detail
