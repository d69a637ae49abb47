#include "rows.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mkldnn_reorder_conv2d_weight.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/to_mkldnn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/autograd.h>

#include "fulgur/core/text/text.h"
#include "fulgur/nn/batch_norm.h"

namespace bench {
namespace {

using at::Tensor;
using fulgur::cat;

constexpr double kFloat = 4, kLong = 8, kExp = 16, kErf = 30;

template <class... Sizes>
double product(Sizes... sizes) {
  return (static_cast<double>(sizes) * ...);
}

Tensor channels_last(const Tensor& tensor) { return tensor.contiguous(at::MemoryFormat::ChannelsLast); }
Tensor images(int64_t batch, int64_t channels, int64_t size) {
  // With one channel, `contiguous` keeps the strides of the other layout.
  return at::randn({batch, size, size, channels}).permute({0, 3, 1, 2});
}

// x · wᵀ + b by oneDNN; `function` is applied to the result: none, relu or gelu.
Work onednn_linear(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias, const char* function = "none") {
  using Signature = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::string_view,
                           c10::List<std::optional<at::Scalar>>, std::optional<c10::string_view>);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Signature>();
  return [=] { op.call(x, w, bias, function, c10::List<std::optional<at::Scalar>>(), "none"); };
}

std::vector<Tensor> tensors_of(const std::vector<std::vector<int64_t>>& shapes, double scale) {
  std::vector<Tensor> list;
  for (const auto& shape : shapes) list.push_back(at::randn(shape).mul_(scale));
  return list;
}

double values_in(const std::vector<std::vector<int64_t>>& shapes) {
  double values = 0;
  for (const auto& shape : shapes) values += static_cast<double>(c10::multiply_integers(shape));
  return values;
}

}  // namespace

Work copy_of(double bytes) {
  const auto values = static_cast<int64_t>(bytes / (2 * kFloat));
  return [from = at::randn({values}), to = at::empty({values})] { to.copy_(from); };
}

std::vector<std::pair<double, Work>> large_products() {
  std::vector<std::pair<double, Work>> products;
  for (const int64_t size : {256, 512, 1024, 1536}) {
    const Tensor a = at::randn({size, size}), b = at::randn({size, size});
    Tensor y = at::empty({size, size});
    const double flops = 2 * product(size, size, size);
    products.emplace_back(flops, [=]() mutable { at::mm_out(y, a, b); });
    products.emplace_back(flops, onednn_linear(a, b, {}));
  }
  return products;
}

Work smallest_call() {
  return [x = at::ones({1})] { x.relu_(); };
}

void add_linear(std::vector<KernelRow>& rows, int64_t m, int64_t k, int64_t n, bool bias, bool of_data) {
  const Tensor x = at::randn({m, k}), w = at::randn({n, k}), g = at::randn({m, n}), b = at::randn({n});
  const Tensor turned = w.t().contiguous(), turned_x = x.t().contiguous();
  const auto forward = [=](const Tensor& weight) -> Work {
    if (bias) return [=] { at::addmm(b, x, weight); };
    return [=] { at::mm(x, weight); };
  };
  const std::string shape = cat(m, " x ", k, " x ", n);
  const double bytes = kFloat * (product(m, k) + product(n, k) + product(m, n)), flops = 2 * product(m, k, n);
  rows.push_back({.name = cat("linear ", shape),
                  .bytes = bytes,
                  .flops = flops,
                  .work = forward(w.t()),
                  .others = {{"weight transposed in memory", forward(turned)},
                             {"oneDNN", onednn_linear(x, w, bias ? std::optional(b) : std::nullopt)}}});
  rows.push_back({.name = cat("linear ", shape, ", gradient of the weight"),
                  .bytes = bytes,
                  .flops = flops,
                  .work = [=] { at::mm(g.t(), x); },
                  .others = {{"result transposed in memory", [=] { at::mm(x.t(), g); }},
                             {"oneDNN", onednn_linear(g.t(), x.t(), {})}}});
  if (!of_data)
    rows.push_back({.name = cat("linear ", shape, ", gradient of the input"),
                    .bytes = bytes,
                    .flops = flops,
                    .work = [=] { at::mm(g, w); },
                    .others = {{"weight transposed in memory", [=] { at::mm(g, turned.t()); }},
                               {"oneDNN", onednn_linear(g, w.t(), {})}}});
  if (bias)
    rows.push_back({.name = cat("linear ", shape, ", gradient of the bias"),
                    .bytes = kFloat * product(m, n),
                    .flops = product(m, n),
                    .work = [=] { g.sum(0); },
                    .others = {{"matrix product with ones", [=, ones = at::ones({1, m})] { at::mm(ones, g); }}}});
}

void add_convolution(std::vector<KernelRow>& rows, int64_t batch, int64_t in, int64_t out, int64_t size, int64_t stride,
                     bool of_data) {
  const int64_t side = size / stride;
  const Tensor x = images(batch, in, size), g = images(batch, out, side), w = channels_last(at::randn({out, in, 3, 3}));
  const auto forward = [=](const Tensor& input, const Tensor& weight) {
    return [=] { at::convolution(input, weight, {}, {stride, stride}, {1, 1}, {1, 1}, false, {0, 0}, 1); };
  };
  const auto backward = [=](const Tensor& gradient, const Tensor& input, const Tensor& weight) {
    return [=] {
      at::convolution_backward(gradient, input, weight, std::nullopt, {stride, stride}, {1, 1}, {1, 1}, false, {0, 0},
                               1, {!of_data, true, false});
    };
  };
  const double of_x = product(batch, in, size, size), of_y = product(batch, out, side, side),
               of_w = product(out, in, 9);
  const double flops = 2 * product(of_y, in, 9);
  const std::string shape = cat(in, " → ", out, ", ", size, " x ", size, stride == 1 ? "" : ", stride 2");
  rows.push_back({.name = cat("convolution ", shape),
                  .bytes = kFloat * (of_x + of_w + of_y),
                  .flops = flops,
                  .work = forward(x, w),
                  .others = {{"channels first", forward(x.contiguous(), w.contiguous())}}});
  rows.push_back({.name = cat("convolution ", shape, ", backward"),
                  .bytes = kFloat * (of_y + of_x + of_w + (of_data ? 0 : of_x + of_w)),
                  .flops = of_data ? flops : 2 * flops,
                  .work = backward(g, x, w),
                  .others = {{"channels first", backward(g.contiguous(), x.contiguous(), w.contiguous())}}});
}

void add_batch_norm(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size) {
  const Tensor x = images(batch, channels, size), g = images(batch, channels, size);
  const Tensor w = at::ones({channels}), b = at::zeros({channels}), mean = at::zeros({channels}),
               var = at::ones({channels});
  const auto forward = [=](const Tensor& input) {
    return [=] { at::native_batch_norm(input, w, b, mean, var, true, 0.1, 1e-5); };
  };
  const auto backward = [=](const Tensor& gradient, const Tensor& input) {
    return [=] { at::native_batch_norm_backward(gradient, input, w, mean, var, b, w, true, 1e-5, {true, true, true}); };
  };
  const double values = product(batch, channels, size, size);
  const std::string shape = cat(channels, " channels, ", size, " x ", size);
  rows.push_back({.name = cat("batch norm ", shape),
                  .bytes = 3 * kFloat * values,
                  .flops = 6 * values,
                  .work = forward(x),
                  .others = {{"channels first", forward(x.contiguous())}}});
  rows.push_back({.name = cat("batch norm ", shape, ", backward"),
                  .bytes = 5 * kFloat * values,
                  .flops = 9 * values,
                  .work = backward(g, x),
                  .others = {{"channels first", backward(g.contiguous(), x.contiguous())}}});
}

void add_max_pool(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size) {
  const Tensor x = images(batch, channels, size), g = images(batch, channels, size / 2);
  const Tensor indices = std::get<1>(at::max_pool2d_with_indices(x, 2));
  const Tensor first = x.contiguous(), first_indices = indices.contiguous(), first_g = g.contiguous();
  const auto backward = [](const Tensor& gradient, const Tensor& input, const Tensor& where) {
    return [=] { at::max_pool2d_with_indices_backward(gradient, input, 2, 2, 0, 1, false, where); };
  };
  const double values = product(batch, channels, size, size), bytes = values * (kFloat + (kFloat + kLong) / 4);
  const std::string shape = cat("max pool ", channels, " channels, ", size, " x ", size);
  const Tensor quarters = x.unflatten(2, {size / 2, 2}).unflatten(4, {size / 2, 2});
  rows.push_back({.name = shape,
                  .bytes = bytes,
                  .flops = values,
                  .work = [=] { at::max_pool2d_with_indices(x, 2); },
                  .others = {{"channels first", [=] { at::max_pool2d_with_indices(first, 2); }},
                             {"maximum of the four views, no indices", [=] {
                                const auto view = [&](int64_t i, int64_t j) {
                                  return quarters.select(5, j).select(3, i);
                                };
                                at::maximum(at::maximum(view(0, 0), view(0, 1)), at::maximum(view(1, 0), view(1, 1)));
                              }}}});
  rows.push_back({.name = cat(shape, ", backward"),
                  .bytes = bytes,
                  .flops = 0,
                  .work = backward(g, x, indices),
                  .others = {{"channels first", backward(first_g, first, first_indices)}}});
}

void add_norm_pool(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size, at::ScalarType type) {
  const at::AutoGradMode with_gradients(true);
  const Tensor x = images(batch, channels, size).to(type).requires_grad_();
  const Tensor g = images(batch, channels, size / 2).to(type);
  using Norm = fulgur::nn::BatchNorm2d;
  const auto in_one = [](Norm norm, const Tensor& input) { return norm->forward_max_pool_relu(input); };
  const auto plain = [](Norm norm, const Tensor& input) { return at::max_pool2d(norm->forward(input), 2).relu_(); };
  const auto forward_of = [=](const auto& function) {
    return [=, norm = Norm(fulgur::nn::BatchNormOptions(channels))] { function(norm, x); };
  };
  // With a separate layer: forwards change running statistics, which LibTorch saves for the backward.
  const auto backward_of = [=](const auto& function) {
    Norm norm{fulgur::nn::BatchNormOptions(channels)};
    const std::vector<Tensor> inputs{x, norm->weight, norm->bias};
    return [=, y = function(norm, x)] { torch::autograd::grad({y}, inputs, {g}, /*retain_graph=*/true); };
  };
  const double values = product(batch, channels, size, size), width = static_cast<double>(x.element_size());
  const std::string name = cat("batch norm, max pool and ReLU in one", type == at::kBFloat16 ? ", bfloat16, " : ", ",
                               channels, " channels, ", size, " x ", size);
  rows.push_back({.name = name,
                  .bytes = values * (2 * width + (2 * width + 1) / 4),
                  .flops = 7 * values,
                  .work = forward_of(in_one),
                  .others = {{"three operations", forward_of(plain)}}});
  rows.push_back({.name = cat(name, ", backward"),
                  .bytes = values * (2 * width + (3 * width + 2) / 4),
                  .flops = 4 * values,
                  .work = backward_of(in_one),
                  .others = {{"three operations", backward_of(plain)}}});
}

void add_mean_pool(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size) {
  const Tensor x = images(batch, channels, size), g = at::randn({batch, channels, 1, 1});
  const double values = product(batch, channels, size, size);
  const std::string shape = cat("mean over ", size, " x ", size, ", ", channels, " channels");
  rows.push_back({.name = shape,
                  .bytes = kFloat * values,
                  .flops = values,
                  .work =
                      [=] {
                        x.mean(at::IntArrayRef{2, 3}, true);
                      },
                  .others = {{"channels first",
                              [x = x.contiguous()] {
                                x.mean(at::IntArrayRef{2, 3}, true);
                              }},
                             {"avg_pool2d", [=] { at::avg_pool2d(x, size); }}}});
  rows.push_back({.name = cat(shape, ", backward"),
                  .bytes = kFloat * values,
                  .flops = values,
                  .work = [=] { g.expand(x.sizes()).div(static_cast<double>(size * size)); },
                  .others = {}});
}

void add_relu(std::vector<KernelRow>& rows, const std::vector<int64_t>& shape) {
  const Tensor x = at::randn(shape), g = at::randn(shape);
  const auto values = static_cast<double>(x.numel());
  rows.push_back({.name = cat("ReLU of ", x.numel(), " values, in place"),
                  .bytes = 2 * kFloat * values,
                  .flops = values,
                  .work = [=] { x.relu_(); },
                  .others = {}});
  rows.push_back({.name = cat("ReLU of ", x.numel(), " values, backward"),
                  .bytes = 3 * kFloat * values,
                  .flops = values,
                  .work = [=] { at::threshold_backward(g, x, 0); },
                  .others = {}});
}

void add_gelu(std::vector<KernelRow>& rows, int64_t m, int64_t n) {
  const Tensor x = at::randn({m, n}), g = at::randn({m, n});
  Tensor y = at::empty({m, n});
  const double values = product(m, n);
  rows.push_back({.name = cat("GELU of ", m, " x ", n),
                  .bytes = 2 * kFloat * values,
                  .flops = (kErf + 4) * values,
                  .work = [=] { at::gelu(x); },
                  .others = {{"with its approximation by tanh", [=] { at::gelu(x, "tanh"); }},
                             {"into memory that stays", [=]() mutable { at::gelu_out(y, x); }}}});
  rows.push_back({.name = cat("GELU of ", m, " x ", n, ", backward"),
                  .bytes = 3 * kFloat * values,
                  .flops = (kErf + kExp + 8) * values,
                  .work = [=] { at::gelu_backward(g, x); },
                  .others = {{"of its approximation by tanh", [=] { at::gelu_backward(g, x, "tanh"); }}}});
}

void add_sum(std::vector<KernelRow>& rows, int64_t m, int64_t n) {
  const Tensor x = at::randn({m, n}), y = at::randn({m, n});
  rows.push_back({.name = cat("sum of two of ", m, " x ", n),
                  .bytes = 3 * kFloat * product(m, n),
                  .flops = product(m, n),
                  .work = [=] { at::add(x, y); },
                  .others = {}});
}

void add_cross_entropy(std::vector<KernelRow>& rows, int64_t m, int64_t classes) {
  const Tensor x = at::randn({m, classes}), labels = at::randint(classes, {m}, at::kLong), g = at::ones({});
  const Tensor logs = at::_log_softmax(x, 1, false),
               count = std::get<1>(at::nll_loss_forward(logs, labels, {}, 1, -100));
  const double values = product(m, classes);
  rows.push_back({.name = cat("cross-entropy ", m, " x ", classes),
                  .bytes = 2 * kFloat * values + kLong * product(m),
                  .flops = (kExp + 4) * values,
                  .work = [=] { at::nll_loss_forward(at::_log_softmax(x, 1, false), labels, {}, 1, -100); },
                  .others = {{"of these log-softmax", [=] { at::_log_softmax(x, 1, false); }}}});
  rows.push_back({.name = cat("cross-entropy ", m, " x ", classes, ", backward"),
                  .bytes = 2 * kFloat * values + kLong * product(m),
                  .flops = (kExp + 2) * values,
                  .work =
                      [=] {
                        const Tensor of_logs = at::nll_loss_backward(g, logs, labels, {}, 1, -100, count);
                        at::_log_softmax_backward_data(of_logs, logs, 1, at::kFloat);
                      },
                  .others = {{"softmax minus one at the label, by three operations", [=] {
                                Tensor dx = logs.exp();
                                dx.scatter_add_(1, labels.unsqueeze(1), at::ones({m, 1}).neg_());
                                dx.mul_(1.0 / static_cast<double>(m));
                              }}}});
}

void add_layer_norm(std::vector<KernelRow>& rows, int64_t m, int64_t width, bool bias) {
  const Tensor x = at::randn({m, width}), g = at::randn({m, width}), w = at::ones({width});
  const Tensor b = bias ? at::zeros({width}) : Tensor();
  const auto [y, mean, rstd] = at::native_layer_norm(x, {width}, w, b, 1e-5);
  const double values = product(m, width);
  rows.push_back({.name = cat("layer norm ", m, " x ", width),
                  .bytes = 2 * kFloat * values,
                  .flops = 7 * values,
                  .work = [=] { at::native_layer_norm(x, {width}, w, b, 1e-5); },
                  .others = {}});
  rows.push_back({.name = cat("layer norm ", m, " x ", width, ", backward"),
                  .bytes = 3 * kFloat * values,
                  .flops = 14 * values,
                  .work =
                      [=, mean = mean, rstd = rstd] {
                        at::native_layer_norm_backward(g, x, {width}, mean, rstd, w, b, {true, true, bias});
                      },
                  .others = {{"of the input alone", [=, mean = mean, rstd = rstd] {
                                at::native_layer_norm_backward(g, x, {width}, mean, rstd, w, b, {true, false, false});
                              }}}});
}

void add_embedding(std::vector<KernelRow>& rows, int64_t m, int64_t vocabulary, int64_t width) {
  const Tensor w = at::randn({vocabulary, width}), g = at::randn({m, width}),
               tokens = at::randint(vocabulary, {m}, at::kLong);
  const double values = product(m, width);
  rows.push_back({.name = cat("embedding ", m, " of ", vocabulary, " x ", width),
                  .bytes = 2 * kFloat * values + kLong * product(m),
                  .flops = 0,
                  .work = [=] { at::embedding(w, tokens); },
                  .others = {{"index_select", [=] { w.index_select(0, tokens); }}}});
  rows.push_back({.name = cat("embedding ", m, " of ", vocabulary, " x ", width, ", backward"),
                  .bytes = kFloat * (values + product(vocabulary, width)) + kLong * product(m),
                  .flops = values,
                  .work = [=] { at::embedding_dense_backward(g, tokens, vocabulary, -1, false); },
                  .others = {{"index_add_",
                              [=] {
                                at::zeros({vocabulary, width}).index_add_(0, tokens, g);
                              }},
                             {"product with a matrix of ones and zeros", [=] {
                                Tensor where = at::zeros({m, vocabulary});
                                where.scatter_(1, tokens.unsqueeze(1), 1);
                                at::mm(where.t(), g);
                              }}}});
}

void add_attention(std::vector<KernelRow>& rows, int64_t samples, int64_t heads, int64_t length, int64_t size) {
  const Tensor all = at::randn({samples, length, 3 * heads * size});
  const auto part = [&](int64_t i) {
    return all.narrow(2, i * heads * size, heads * size).view({samples, length, heads, size}).transpose(1, 2);
  };
  const Tensor q = part(0), k = part(1), v = part(2);
  const auto [y, logs] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true);
  const Tensor g = at::randn({samples, length, heads, size}).transpose(1, 2);
  // Half of the scores are masked.
  const double values = product(samples, heads, length, size), scores = product(samples, heads, length, length) / 2;
  const std::string shape = cat("attention ", samples, " x ", heads, " x ", length, " x ", size);
  rows.push_back({.name = shape,
                  .bytes = 4 * kFloat * values,
                  .flops = 2 * 2 * product(scores, size) + (kExp + 4) * scores,
                  .work = [=] { at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true); },
                  .others = {{"products and softmax, not causal", [=] {
                                const Tensor flat = q.reshape({-1, length, size});
                                const Tensor p = at::bmm(flat, k.reshape({-1, length, size}).transpose(1, 2))
                                                     .mul_(1 / std::sqrt(static_cast<double>(size)))
                                                     .softmax(-1);
                                at::bmm(p, v.reshape({-1, length, size}));
                              }}}});
  rows.push_back({.name = cat(shape, ", backward"),
                  .bytes = 8 * kFloat * values,
                  .flops = 5 * 2 * product(scores, size) + (kExp + 8) * scores,
                  .work =
                      [=, y = y, logs = logs] {
                        at::_scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, y, logs, 0, true);
                      },
                  .others = {}});
}

void add_clipping(std::vector<KernelRow>& rows, const std::vector<std::vector<int64_t>>& shapes) {
  const std::vector<Tensor> gradients = tensors_of(shapes, 1);
  const Tensor factor = at::ones({});
  rows.push_back({.name = cat("norm and scaling of the gradients, ", shapes.size(), " tensors"),
                  .bytes = 3 * kFloat * values_in(shapes),
                  .flops = 3 * values_in(shapes),
                  .work =
                      [=] {
                        at::_foreach_norm(gradients);
                        at::_foreach_mul_(gradients, factor);
                      },
                  .others = {}});
}

void add_adamw(std::vector<KernelRow>& rows, const std::vector<std::vector<int64_t>>& shapes) {
  const std::vector<Tensor> parameters = tensors_of(shapes, 1), gradients = tensors_of(shapes, 1e-3),
                            first = tensors_of(shapes, 0), second = tensors_of(shapes, 0);
  const std::vector<Tensor> steps(shapes.size(), at::ones({}));
  rows.push_back(
      {.name = cat("AdamW of ", static_cast<int64_t>(values_in(shapes)), " values, ", shapes.size(), " tensors"),
       .bytes = 7 * kFloat * values_in(shapes),
       .flops = 16 * values_in(shapes),
       .work =
           [=] {
             at::_fused_adamw_(parameters, gradients, first, second, {}, steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, false,
                               false);
           },
       .others = {}});
}

void add_sgd(std::vector<KernelRow>& rows, const std::vector<std::vector<int64_t>>& shapes) {
  const std::vector<Tensor> parameters = tensors_of(shapes, 1), gradients = tensors_of(shapes, 1e-3),
                            momentum = tensors_of(shapes, 0);
  rows.push_back(
      {.name = cat("SGD of ", static_cast<int64_t>(values_in(shapes)), " values, ", shapes.size(), " tensors"),
       .bytes = 5 * kFloat * values_in(shapes),
       .flops = 8 * values_in(shapes),
       .work = [=] { at::_fused_sgd_(parameters, gradients, momentum, 5e-4, 0.9, 1e-4, 0, true, false, false); },
       .others = {}});
}

}  // namespace bench
