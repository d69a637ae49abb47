#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/strategies/ddp.h"
#include "fulgur/strategies/process_group.h"

namespace fulgur::detail {

using Buckets = std::vector<std::vector<int64_t>>;

/// LibTorch's Reducer over some parameters: averages their gradients over ranks, bucket by bucket, while backward
/// computes.
class GradientReducer {
 public:
  /// With `buckets` (indices of parameters) of an earlier Reducer; empty: by size.
  GradientReducer(ProcessGroup& group, std::vector<NamedParameter> parameters, const DDPStrategy::Options& options,
                  const Buckets& buckets);
  ~GradientReducer();

  void before_forward();
  /// Calls `awaited` in the following backward of `loss`, when all gradients of this rank are computed and the Reducers
  /// begin to wait for the exchange. Call before `before_backward` of the Reducers.
  static void call_before_wait(const Tensor& loss, std::function<void()> awaited);
  /// Call before a backward whose gradients are to be averaged.
  void before_backward(const Tensor& loss);
  /// Call after it. Throws a DistributedError that names the parameters that got no gradient in this backward.
  void after_backward();
  Buckets buckets() const;
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  bool holds_any_of(const std::vector<Tensor>& tensors) const;
  bool needs_any_gradient() const;

 private:
  std::vector<std::string> without_gradient(const std::string& message) const;

  struct Impl;
  std::vector<NamedParameter> parameters_;
  int64_t rank_;
  bool find_unused_, static_graph_, began_ = false;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::detail
