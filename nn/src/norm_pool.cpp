#include "norm_pool.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "norm_pool_operators.h"

namespace fulgur::nn {
namespace {

using OptionalTensor = std::optional<Tensor>;

void fold(const BatchStatistics& statistics, int64_t count, const RunningStatistics& running) {
  if (!running.mean.defined() || running.factor == 0) return;
  const at::NoGradGuard no_grad;
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  running.mean.mul_(1 - running.factor).add_(statistics.mean, running.factor);
  running.var.mul_(1 - running.factor).add_(statistics.var, running.factor * unbiased);
}

// The gradient of the normalised images for that of the pooled ones; differentiable by the latter.
Tensor spread(const Tensor& gradient, const Tensor& winners, at::IntArrayRef sizes) {
  const auto of_place = [&](int64_t number) { return gradient * winners.eq(number); };
  const Tensor rows = at::stack({at::stack({of_place(0), of_place(1)}, -1), at::stack({of_place(2), of_place(3)}, -1)},
                                3);  // (N, C, h, 2, w, 2)
  const int64_t height = 2 * winners.size(2), width = 2 * winners.size(3);
  return at::constant_pad_nd(rows.reshape({sizes[0], sizes[1], height, width}),
                             {0, sizes[3] - width, 0, sizes[2] - height});
}

class NormMaxPoolRelu : public torch::autograd::Function<NormMaxPoolRelu> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

 public:
  static Tensor forward(Context* context, const Tensor& images, const OptionalTensor& weight,
                        const OptionalTensor& bias, const RunningStatistics* running, double eps) {
    const BatchStatistics statistics = batch_statistics(images, eps);
    fold(statistics, images.numel() / images.size(1), *running);
    auto [pooled, winners, winning] = norm_pool(images, statistics, weight.value_or(Tensor()), bias.value_or(Tensor()),
                                                /*for_gradients=*/true);
    context->save_for_backward(
        {images, weight.value_or(Tensor()), winners, winning, statistics.mean, statistics.invstd});
    context->saved_data["eps"] = eps;
    if (bias) context->saved_data["bias_type"] = static_cast<int64_t>(bias->scalar_type());
    return pooled;
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    if (!gradients[0].defined()) return Tensors(5);
    const Tensors saved = context->get_saved_variables();
    const Tensor &images = saved[0], &weight = saved[1], &winners = saved[2];
    if (at::GradMode::is_enabled()) return differentiable(context, gradients[0], images, weight, winners);
    // Hooks of saved tensors may have given them another layout.
    const auto channels_last = [](const Tensor& tensor) { return tensor.contiguous(at::MemoryFormat::ChannelsLast); };
    auto [dx, dweight, dbias] = norm_pool_gradients(
        channels_last(gradients[0].to(images.scalar_type())), channels_last(images), channels_last(winners),
        channels_last(saved[3]), {saved[4], {}, saved[5]}, weight, context->needs_input_grad(0));
    const bool for_weight = weight.defined() && context->needs_input_grad(1);
    return {dx, for_weight ? dweight.to(weight.scalar_type()) : Tensor(), of_bias(context, dbias), Tensor(), Tensor()};
  }

 private:
  static Tensor of_bias(Context* context, const Tensor& gradient) {
    const auto type = context->saved_data.find("bias_type");
    if (type == context->saved_data.end() || !context->needs_input_grad(2)) return {};
    return gradient.to(static_cast<at::ScalarType>(type->second.toInt()));
  }

  // With create_graph. The inputs are aliases: hooks of the tensors themselves would run here, and once more after it.
  static Tensors differentiable(Context* context, const Tensor& gradient, const Tensor& images, const Tensor& weight,
                                const Tensor& winners) {
    const Tensor input = at::alias(images), scale = weight.defined() ? at::alias(weight) : Tensor();
    const Tensor of_normalised = spread(gradient, winners, images.sizes());
    Tensors inputs;
    if (context->needs_input_grad(0)) inputs.push_back(input);
    if (scale.defined() && context->needs_input_grad(1)) inputs.push_back(scale);
    Tensors found;
    if (!inputs.empty()) {
      const Tensor normalised = at::batch_norm(input, given(scale), {}, {}, {}, /*training=*/true, 0,
                                               context->saved_data["eps"].toDouble(), /*cudnn_enabled=*/false);
      found =
          torch::autograd::grad({normalised}, inputs, {of_normalised}, /*retain_graph=*/true, /*create_graph=*/true);
    }
    Tensors results(5);
    if (context->needs_input_grad(0)) results[0] = found.front();
    if (scale.defined() && context->needs_input_grad(1)) results[1] = found.back();
    results[2] = of_bias(context, of_normalised.sum({0, 2, 3}));
    return results;
  }
};

// LibTorch refuses parameters of another type or size.
bool fits(const Tensor& parameter, const Tensor& images) {
  return !parameter.defined() ||
         (parameter.is_cpu() && parameter.layout() == at::kStrided && parameter.dim() == 1 &&
          parameter.size(0) == images.size(1) &&
          (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == images.scalar_type()));
}

}  // namespace

bool takes_norm_pool(const Tensor& images, const Tensor& weight, const Tensor& bias) {
  const bool known = images.scalar_type() == at::kFloat || images.scalar_type() == at::kBFloat16;
  const bool is_traced = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
  return !is_traced && images.is_cpu() && images.layout() == at::kStrided && known && images.dim() == 4 &&
         images.size(0) > 0 && images.size(2) >= 2 && images.size(3) >= 2 &&
         images.is_contiguous(at::MemoryFormat::ChannelsLast) && fits(weight, images) && fits(bias, images);
}

bool takes_running_statistics(const Tensor& images, const RunningStatistics& running) {
  return fits(running.mean, images) && fits(running.var, images);
}

Tensor norm_max_pool_relu(const Tensor& images, const Tensor& weight, const Tensor& bias,
                          const RunningStatistics& running, double eps) {
  return NormMaxPoolRelu::apply(images, given(weight), given(bias), &running, eps);
}

Tensor evaluated_norm_max_pool_relu(const Tensor& images, const Tensor& weight, const Tensor& bias,
                                    const RunningStatistics& running, double eps) {
  const BatchStatistics statistics{running.mean.to(at::kFloat), {}, (running.var.to(at::kFloat) + eps).rsqrt_()};
  return std::get<0>(norm_pool(images, statistics, weight, bias, /*for_gradients=*/false));
}

}  // namespace fulgur::nn
