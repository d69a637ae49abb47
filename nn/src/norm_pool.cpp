#include "norm_pool.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "norm_pool_operators.h"

namespace fulgur::nn {
namespace {

using OptionalTensor = std::optional<Tensor>;

OptionalTensor given(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

void fold(const BatchStatistics& statistics, int64_t count, const RunningStatistics& running) {
  if (!running.mean.defined() || running.factor == 0) return;
  const at::NoGradGuard no_grad;
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  running.mean.mul_(1 - running.factor).add_(statistics.mean, running.factor);
  running.var.mul_(1 - running.factor).add_(statistics.var, running.factor * unbiased);
}

class NormMaxPoolRelu : public torch::autograd::Function<NormMaxPoolRelu> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

 public:
  static Tensor forward(Context* context, const Tensor& images, const OptionalTensor& weight,
                        const OptionalTensor& bias, const RunningStatistics* running, double eps) {
    const BatchStatistics statistics = batch_statistics(images, eps);
    fold(statistics, images.numel() / images.size(1), *running);
    auto [pooled, winners] = norm_pool(images, statistics, weight.value_or(Tensor()), bias.value_or(Tensor()));
    context->save_for_backward(
        {images, weight.value_or(Tensor()), bias.value_or(Tensor()), winners, statistics.mean, statistics.invstd});
    context->saved_data["eps"] = eps;
    return pooled;
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    const Tensors saved = context->get_saved_variables();
    const Tensor &images = saved[0], &weight = saved[1], &bias = saved[2];
    Tensors results(5);  // the last two are no tensors
    if (!gradients[0].defined()) return results;
    if (at::GradMode::is_enabled()) return of_operations(context, gradients[0], images, weight, bias);
    const Tensor gradient = gradients[0].to(images.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
    auto [dx, dweight, dbias] =
        norm_pool_gradients(gradient, images, saved[3], {saved[4], {}, saved[5]}, weight, context->needs_input_grad(0));
    results[0] = dx;
    if (weight.defined() && context->needs_input_grad(1)) results[1] = dweight.to(weight.scalar_type());
    if (bias.defined() && context->needs_input_grad(2)) results[2] = dbias.to(bias.scalar_type());
    return results;
  }

 private:
  // With create_graph: differentiable, unlike norm_pool_gradients.
  static Tensors of_operations(Context* context, const Tensor& gradient, const Tensor& images, const Tensor& weight,
                               const Tensor& bias) {
    const Tensor pooled = at::max_pool2d(at::batch_norm(images, given(weight), given(bias), {}, {}, /*training=*/true,
                                                        0, context->saved_data["eps"].toDouble(), false),
                                         2)
                              .relu();
    const Tensors all{images, weight, bias};
    Tensors wanted, results(5);
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].defined() && context->needs_input_grad(i)) wanted.push_back(all[i]);
    const Tensors found = torch::autograd::grad({pooled}, wanted, {gradient}, /*retain_graph=*/true,
                                                /*create_graph=*/true);
    for (size_t i = 0, next = 0; i < all.size(); ++i)
      if (all[i].defined() && context->needs_input_grad(i)) results[i] = found[next++];
    return results;
  }
};

bool is_plain(const Tensor& tensor) {
  return !tensor.defined() || (tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_floating_point());
}

}  // namespace

bool takes_norm_pool(const Tensor& images, const Tensor& weight, const Tensor& bias) {
  const bool known = images.scalar_type() == at::kFloat || images.scalar_type() == at::kBFloat16;
  return images.is_cpu() && images.layout() == at::kStrided && known && images.dim() == 4 && images.size(0) > 0 &&
         images.size(2) >= 2 && images.size(3) >= 2 && images.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         is_plain(weight) && is_plain(bias);
}

Tensor norm_max_pool_relu(const Tensor& images, const Tensor& weight, const Tensor& bias,
                          const RunningStatistics& running, double eps) {
  return NormMaxPoolRelu::apply(images, given(weight), given(bias), &running, eps);
}

}  // namespace fulgur::nn
