#include "fulgur/nn/linear.h"

#include <ATen/ops/add.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/nn/init.h>

#include <cmath>

namespace fulgur::nn {

LinearImpl::LinearImpl(const LinearOptions& options_) : options(options_) { LinearImpl::reset(); }

void LinearImpl::reset() {
  weight = register_parameter("weight", at::empty({options.out_features(), options.in_features()}));
  if (options.bias())
    bias = register_parameter("bias", at::empty({options.out_features()}));
  else
    bias = register_parameter("bias", Tensor(), /*requires_grad=*/false);
  reset_parameters();
  if (lora_A.defined()) add_lora(lora, lora_A.detach().clone(), lora_B.detach().clone());  // for clone()
}

void LinearImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (bias.defined() && options.in_features() > 0) {
    const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
    bias.uniform_(-bound, bound);
  }
}

void LinearImpl::add_lora(const LoraOptions& adapter, const Tensor& a, const Tensor& b) {
  lora = adapter;
  lora_A = register_parameter("lora_A", a);
  lora_B = register_parameter("lora_B", b);
}

Tensor LinearImpl::forward(const Tensor& input) {
  const Tensor output = at::linear(input, weight, bias);
  if (!lora_A.defined()) return output;
  const Tensor kept = lora.dropout > 0 && is_training() ? at::dropout(input, lora.dropout, /*train=*/true) : input;
  return at::add(output, at::linear(at::linear(kept, lora_A), lora_B), lora.scale());
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "fulgur::nn::Linear(in_features=" << options.in_features() << ", out_features=" << options.out_features()
         << ", bias=" << std::boolalpha << options.bias() << ")";
}

}  // namespace fulgur::nn
