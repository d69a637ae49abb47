// Batch norm over several ranks, cuDNN's batch norm, layer norm, and the backward of RMS norm. If the input is narrower
// than float32, they compute and save their statistics in float32, like the CUDA kernels.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <array>

#include "twin.h"
#include "widened.h"

namespace simulated_cuda {
namespace {

// The counts of samples may be integers.
at::Tensor as_numbers(const at::Tensor& counts) {
  return counts.is_floating_point() ? widened(counts) : counts.to(at::kFloat);
}

std::vector<int64_t> all_but_channels(const at::Tensor& value) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < value.dim(); ++d)
    if (d != 1) dims.push_back(d);
  return dims;
}

// One value per channel, broadcast against (N, C, …).
at::Tensor spread(const at::Tensor& value, const at::Tensor& like) {
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[1] = value.numel();
  return value.reshape(sizes);
}

// (input, eps) → (mean, invstd)
void stats(const TwinCall& call) {
  const at::Tensor x = widened(call.tensor(0));
  const auto dims = all_but_channels(x);
  const at::Tensor mean = x.mean(dims), variance = (x - spread(mean, x)).square().mean(dims);
  call.arguments = {mean, (variance + call.number(1)).rsqrt()};
}

// (input, weight?, bias?, mean, invstd, eps) → output
void elemt(const TwinCall& call) {
  const at::Tensor x = widened(call.tensor(0));
  at::Tensor y = (x - spread(widened(call.tensor(3)), x)) * spread(widened(call.tensor(4)), x);
  if (const auto weight = call.optional(1)) y = y * spread(widened(*weight), x);
  if (const auto bias = call.optional(2)) y = y + spread(widened(*bias), x);
  call.arguments = {y.to(call.tensor(0).scalar_type())};
}

// (input, mean, invstd, running_mean?, running_var?, momentum, eps, counts) → (mean, invstd), of all ranks
void gather(const TwinCall& call, const at::Tensor& counts) {
  const at::Tensor means = widened(call.tensor(1)), invstds = widened(call.tensor(2));
  const at::Tensor n = as_numbers(counts).reshape({-1, 1});
  const double momentum = call.number(5), eps = call.number(6);
  const at::Tensor total = n.sum();
  const at::Tensor mean = (means * n).sum(0) / total;
  const at::Tensor variances = invstds.pow(-2) - eps;
  const at::Tensor squares = ((variances + (means - mean).square()) * n).sum(0);
  if (const auto running = call.optional(3)) running->copy_(*running * (1 - momentum) + mean * momentum);
  if (const auto running = call.optional(4))
    running->copy_(*running * (1 - momentum) + squares / (total - 1) * momentum);
  call.arguments = {mean, (squares / total + eps).rsqrt()};
}

void gather_with_counts(const TwinCall& call) { gather(call, call.tensor(7)); }
void gather_with_count(const TwinCall& call) { gather(call, at::full({call.tensor(1).size(0)}, call.number(7))); }

// (grad, input, mean, invstd, weight?, input_g, weight_g, bias_g) → (sum_dy, sum_dy_xmu, grad_weight, grad_bias)
void backward_reduce(const TwinCall& call) {
  const at::Tensor dy = widened(call.tensor(0)), x = widened(call.tensor(1)), invstd = widened(call.tensor(3));
  const auto dims = all_but_channels(x);
  const at::Tensor sum = dy.sum(dims), sum_x = (dy * (x - spread(widened(call.tensor(2)), x))).sum(dims);
  const auto weight = call.optional(4);
  const at::ScalarType type = weight ? weight->scalar_type() : sum.scalar_type();
  const bool input_g = call.arguments[5].toBool(), weight_g = call.arguments[6].toBool(),
             bias_g = call.arguments[7].toBool();
  call.arguments = {input_g ? sum : at::Tensor(), input_g ? sum_x : at::Tensor(),
                    weight_g ? (sum_x * invstd).to(type) : at::Tensor(), bias_g ? sum.to(type) : at::Tensor()};
}

// (grad, input, mean, invstd, weight?, sum_dy, sum_dy_xmu, counts) → grad of the input
void backward_elemt(const TwinCall& call) {
  const at::Tensor dy = widened(call.tensor(0)), x = widened(call.tensor(1)), invstd = widened(call.tensor(3));
  const at::Tensor total = as_numbers(call.tensor(7)).sum();
  at::Tensor factor = invstd;
  if (const auto weight = call.optional(4)) factor = factor * widened(*weight);
  const at::Tensor slope = widened(call.tensor(6)) / total * invstd.square();
  const at::Tensor centred =
      dy - spread(widened(call.tensor(5)) / total, x) - (x - spread(widened(call.tensor(2)), x)) * spread(slope, x);
  call.arguments = {(centred * spread(factor, x)).to(call.tensor(1).scalar_type())};
}

// (input, weight?, bias?, running_mean?, running_var?, training, momentum, eps) → (output, mean, invstd). In
// evaluation, the last two results of the CPU kernel are empty. Those of the CUDA kernel have one value per channel,
// and only invstd is read.
void native(const TwinCall& call) {
  auto [y, mean, invstd] =
      at::native_batch_norm(call.tensor(0), call.optional(1), call.optional(2), call.optional(3), call.optional(4),
                            call.arguments[5].toBool(), call.number(6), call.number(7));
  if (!call.arguments[5].toBool()) {
    mean = widened(call.tensor(3));
    invstd = (widened(call.tensor(4)) + call.number(7)).rsqrt();
  }
  call.arguments = {y, mean, invstd};
}

// (input, weight?, bias?, training, momentum, eps) → (output, mean, invstd)
void native_without_statistics(const TwinCall& call) {
  auto [y, mean, invstd] = at::native_batch_norm(call.tensor(0), call.optional(1), call.optional(2), {}, {},
                                                 call.arguments[3].toBool(), call.number(4), call.number(5));
  call.arguments = {y, mean, invstd};
}

// (input, weight?, bias?, running_mean, running_var, momentum, eps) → (output, mean, invstd, reserve)
void native_with_update(const TwinCall& call) {
  auto [y, mean, invstd] = at::native_batch_norm(call.tensor(0), call.optional(1), call.optional(2), call.optional(3),
                                                 call.optional(4), true, call.number(5), call.number(6));
  call.arguments = {y, mean, invstd, at::empty({0}, at::kByte)};
}

// (input, weight, bias?, running_mean?, running_var?, training, momentum, eps) → (output, mean, invstd, reserve)
void cudnn_batch_norm(const TwinCall& call) {
  auto [y, mean, invstd] =
      at::native_batch_norm(call.tensor(0), call.tensor(1), call.optional(2), call.optional(3), call.optional(4),
                            call.arguments[5].toBool(), call.number(6), call.number(7));
  call.arguments = {y, mean, invstd, at::empty({0}, at::kByte)};
}

// (input, grad, weight, running_mean?, running_var?, mean?, invstd?, eps, reserve) → (grads of input, weight, bias)
void cudnn_batch_norm_backward(const TwinCall& call) {
  auto [dx, dw, db] =
      at::native_batch_norm_backward(widened(call.tensor(1)), widened(call.tensor(0)), widened(call.tensor(2)),
                                     widened(call.optional(3)), widened(call.optional(4)), widened(call.optional(5)),
                                     widened(call.optional(6)), true, call.number(7), {true, true, true});
  call.arguments = {in_dtype_of(dx, call.tensor(0)), in_dtype_of(dw, call.tensor(2)), in_dtype_of(db, call.tensor(2))};
}

std::array<bool, 3> mask_of(const c10::IValue& value) {
  std::array<bool, 3> mask{};
  const auto wanted = value.toBoolList();
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = wanted[i];
  return mask;
}

// (grad, input, weight?, running_mean?, running_var?, mean?, invstd?, training, eps, mask, …) → (grads of input,
// weight, bias). If the input is narrower than float32, the forward saved float32 tensors, which the CPU kernel does
// not accept.
void batch_norm_backward(const TwinCall& call) {
  const at::Tensor& x = call.tensor(1);
  const at::Tensor scale = call.optional(2).value_or(x);
  auto [dx, dw, db] = at::native_batch_norm_backward(
      widened(call.tensor(0)), widened(x), widened(call.optional(2)), widened(call.optional(3)),
      widened(call.optional(4)), widened(call.optional(5)), widened(call.optional(6)), call.arguments[7].toBool(),
      call.number(8), mask_of(call.arguments[9]));
  call.arguments = {in_dtype_of(dx, x), in_dtype_of(dw, scale), in_dtype_of(db, scale)};
}

// (input, normalized_shape, weight?, bias?, eps) → (output, mean, rstd)
void layer_norm(const TwinCall& call) {
  const at::Tensor& x = call.tensor(0);
  auto [y, mean, rstd] = at::native_layer_norm(widened(x), call.arguments[1].toIntVector(), widened(call.optional(2)),
                                               widened(call.optional(3)), call.number(4));
  call.arguments = {in_dtype_of(y, x), mean, rstd};
}

// (grad, input, normalized_shape, mean, rstd, weight?, bias?, mask) → (grads of input, weight, bias)
void layer_norm_backward(const TwinCall& call) {
  const at::Tensor& x = call.tensor(1);
  const at::Tensor weight = call.optional(5).value_or(x), bias = call.optional(6).value_or(x);
  auto [dx, dw, db] = at::native_layer_norm_backward(
      widened(call.tensor(0)), widened(x), call.arguments[2].toIntVector(), widened(call.tensor(3)),
      widened(call.tensor(4)), widened(call.optional(5)), widened(call.optional(6)), mask_of(call.arguments[7]));
  call.arguments = {in_dtype_of(dx, x), in_dtype_of(dw, weight), in_dtype_of(db, bias)};
}

// (grad, input, normalized_shape, rstd, weight?, mask) → (grads of input, weight)
void rms_norm_backward(const TwinCall& call) {
  const at::Tensor dy = widened(call.tensor(0)), x = widened(call.tensor(1)), rstd = widened(call.tensor(3));
  const auto shape = call.arguments[2].toIntVector();
  std::vector<int64_t> last, first;
  for (int64_t d = 0; d < x.dim(); ++d) (d < x.dim() - static_cast<int64_t>(shape.size()) ? first : last).push_back(d);
  const auto weight = call.optional(4);
  const at::Tensor scaled = weight ? dy * widened(*weight) : dy, normal = x * rstd;
  const at::Tensor dx = rstd * (scaled - normal * (scaled * normal).mean(last, /*keepdim=*/true));
  at::Tensor dw;
  if (weight) dw = (first.empty() ? dy * normal : (dy * normal).sum(first)).to(weight->scalar_type());
  call.arguments = {dx.to(call.tensor(1).scalar_type()), dw};
}

}  // namespace

void add_norm_twins(HandWrittenTwins& twins) {
  twins["aten::batch_norm_stats"] = {Mode::beside, stats};
  twins["aten::batch_norm_elemt"] = {Mode::beside, elemt};
  twins["aten::batch_norm_gather_stats_with_counts"] = {Mode::beside, gather_with_counts};
  twins["aten::batch_norm_gather_stats"] = {Mode::beside, gather_with_count};
  twins["aten::batch_norm_backward_reduce"] = {Mode::beside, backward_reduce};
  twins["aten::batch_norm_backward_elemt"] = {Mode::beside, backward_elemt};
  twins["aten::native_batch_norm"] = {Mode::beside, native};
  twins["aten::native_batch_norm_backward"] = {Mode::beside, batch_norm_backward};
  twins["aten::_native_batch_norm_legit"] = {Mode::beside, native};
  twins["aten::_native_batch_norm_legit.no_stats"] = {Mode::beside, native_without_statistics};
  twins["aten::_batch_norm_with_update"] = {Mode::instead, native_with_update};
  twins["aten::batch_norm_backward"] = {Mode::instead, batch_norm_backward};
  twins["aten::native_layer_norm"] = {Mode::beside, layer_norm};
  twins["aten::native_layer_norm_backward"] = {Mode::beside, layer_norm_backward};
  twins["aten::cudnn_batch_norm"] = {Mode::instead, cudnn_batch_norm};
  twins["aten::cudnn_batch_norm_backward"] = {Mode::instead, cudnn_batch_norm_backward};
  twins["aten::_fused_rms_norm_backward"] = {Mode::beside, rms_norm_backward};
}

}  // namespace simulated_cuda
