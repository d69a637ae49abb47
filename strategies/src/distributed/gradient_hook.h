#pragma once

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <utility>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// Calls a function when the gradient of a parameter has been accumulated, in the thread that did it. The parameter
/// holds its accumulator weakly.
class GradientHook {
 public:
  GradientHook(const Tensor& parameter, std::function<void()> then)
      : accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {
    key_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [then = std::move(then)](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          then();
          return outputs;
        }));
  }
  ~GradientHook() { accumulator_->del_post_hook(key_); }
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  std::shared_ptr<torch::autograd::Node> accumulator_;
  uintptr_t key_;
};

}  // namespace fulgur::detail
