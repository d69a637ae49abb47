#include "fulgur/nn/layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>

namespace fulgur::nn {
namespace {

// The CUDA kernels need a single dtype; the CPU's accept a half input with float32 weights.
template <class Normalise>
Tensor in_format_of(const Tensor& weight, const Tensor& input, Normalise&& normalise) {
  const bool casts = weight.defined() && weight.scalar_type() != input.scalar_type() && !input.is_cpu();
  return casts ? normalise(input.to(weight.scalar_type())).to(input.scalar_type()) : normalise(input);
}

// An undefined weight or bias stays in the module's list, as LibTorch's layers keep it.
Tensor register_affine(torch::nn::Module& module, const char* name, bool affine, at::IntArrayRef shape) {
  return affine ? module.register_parameter(name, at::empty(shape))
                : module.register_parameter(name, Tensor(), /*requires_grad=*/false);
}

void reset_affine(const Tensor& weight, const Tensor& bias) {
  const torch::NoGradGuard no_grad;
  if (weight.defined()) weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

}  // namespace

LayerNormImpl::LayerNormImpl(LayerNormOptions options_, bool with_bias)
    : options(std::move(options_)), with_bias_(with_bias) {
  LayerNormImpl::reset();
}

void LayerNormImpl::reset() {
  const bool affine = options.elementwise_affine();
  weight = register_affine(*this, "weight", affine, options.normalized_shape());
  if (with_bias_ || !affine) bias = register_affine(*this, "bias", affine, options.normalized_shape());
  reset_parameters();
}

void LayerNormImpl::reset_parameters() { reset_affine(weight, bias); }

Tensor LayerNormImpl::forward(const Tensor& input) {
  return in_format_of(weight, input, [&](const Tensor& x) {
    return at::layer_norm(x, options.normalized_shape(), weight, bias, options.eps());
  });
}

void LayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "fulgur::nn::LayerNorm(" << at::IntArrayRef(options.normalized_shape()) << ", eps=" << options.eps()
         << ", elementwise_affine=" << std::boolalpha << options.elementwise_affine() << ")";
}

GroupNormImpl::GroupNormImpl(const GroupNormOptions& options_) : options(options_) { GroupNormImpl::reset(); }

void GroupNormImpl::reset() {
  weight = register_affine(*this, "weight", options.affine(), options.num_channels());
  bias = register_affine(*this, "bias", options.affine(), options.num_channels());
  reset_parameters();
}

void GroupNormImpl::reset_parameters() { reset_affine(weight, bias); }

Tensor GroupNormImpl::forward(const Tensor& input) {
  return in_format_of(weight, input, [&](const Tensor& x) {
    return at::group_norm(x, options.num_groups(), weight, bias, options.eps());
  });
}

void GroupNormImpl::pretty_print(std::ostream& stream) const {
  stream << "fulgur::nn::GroupNorm(" << options.num_groups() << ", " << options.num_channels()
         << ", eps=" << options.eps() << ", affine=" << std::boolalpha << options.affine() << ")";
}

}  // namespace fulgur::nn
