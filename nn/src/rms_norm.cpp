#include "fulgur/nn/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>

namespace fulgur::nn {

RMSNormImpl::RMSNormImpl(int64_t width, double eps) : width_(width), eps_(eps) { RMSNormImpl::reset(); }

void RMSNormImpl::reset() {
  weight = register_parameter("weight", at::empty({width_}));
  reset_parameters();
}

void RMSNormImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  weight.fill_(1);
}

// LibTorch's fused kernel needs a single dtype, and warns of two.
Tensor RMSNormImpl::forward(const Tensor& input) {
  if (input.scalar_type() == weight.scalar_type()) return at::rms_norm(input, {width_}, weight, eps_);
  return at::rms_norm(input.to(weight.scalar_type()), {width_}, weight, eps_).to(input.scalar_type());
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "fulgur::nn::RMSNorm(" << width_ << ", eps=" << eps_ << ")";
}

}  // namespace fulgur::nn
