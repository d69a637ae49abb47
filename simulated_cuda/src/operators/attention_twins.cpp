// Fused attention, computed by its definition in float32 (double if the input is double): softmax(QK^T * scale + bias)
// V. The dropout mask follows from the generator's state, which the forward saves and the backward reads.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <limits>

#include "philox.h"
#include "twin.h"

namespace simulated_cuda {
namespace {

struct Problem {
  at::Tensor query, key, value;  // (B, H, L, D), in float32 or double
  std::optional<at::Tensor> bias;
  double dropout = 0, scale = 0;
  bool causal = false;
};

at::Tensor wide(const at::Tensor& value) { return value.scalar_type() == at::kDouble ? value : value.to(at::kFloat); }

Problem make_problem(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     std::optional<at::Tensor> bias, double dropout, bool causal, const c10::IValue& scale) {
  Problem p{wide(query), wide(key), wide(value), std::move(bias), dropout, 0, causal};
  p.scale = scale.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1))) : scale.toDouble();
  return p;
}

at::Tensor scores(const Problem& p) {
  at::Tensor s = at::matmul(p.query, p.key.transpose(-1, -2)) * p.scale;
  if (p.bias) s = s + wide(*p.bias);
  if (p.causal) {
    const at::Tensor row = at::arange(s.size(-2)).unsqueeze(1), column = at::arange(s.size(-1)).unsqueeze(0);
    s = s.masked_fill(column > row, -std::numeric_limits<double>::infinity());
  }
  return s;
}

// The factor of each attention weight: 0, or the scale of the weights that are kept.
at::Tensor dropout_factor(const Problem& p, at::IntArrayRef sizes, uint64_t seed, uint64_t offset) {
  return Draws(seed, offset).keep_mask(sizes, 1 - p.dropout).to(at::kFloat) / (1 - p.dropout);
}

struct Forward {
  at::Tensor output, log_sum;  // (B, H, L, D), (B, H, L) in float32
};

Forward forward(const Problem& p, uint64_t seed, uint64_t offset) {
  const at::Tensor s = scores(p), log_sum = s.logsumexp(-1);
  at::Tensor weights = (s - log_sum.unsqueeze(-1)).exp();
  if (p.dropout > 0) weights = weights * dropout_factor(p, weights.sizes(), seed, offset);
  return {at::matmul(weights, p.value), log_sum.to(at::kFloat)};
}

struct Gradients {
  at::Tensor query, key, value, bias;
};

Gradients backward(const Problem& p, const at::Tensor& grad_narrow, uint64_t seed, uint64_t offset) {
  const at::Tensor grad = wide(grad_narrow), s = scores(p);
  const at::Tensor weights = (s - s.logsumexp(-1, /*keepdim=*/true)).exp();
  at::Tensor dropped = weights, grad_weights = at::matmul(grad, p.value.transpose(-1, -2));
  if (p.dropout > 0) {
    const at::Tensor factor = dropout_factor(p, weights.sizes(), seed, offset);
    dropped = weights * factor;
    grad_weights = grad_weights * factor;
  }
  const at::Tensor grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, /*keepdim=*/true));
  Gradients g{at::matmul(grad_scores, p.key) * p.scale,
              at::matmul(grad_scores.transpose(-1, -2), p.query) * p.scale,
              at::matmul(dropped.transpose(-1, -2), grad),
              {}};
  if (p.bias) g.bias = grad_scores;
  return g;
}

std::pair<uint64_t, uint64_t> state_of(const TwinCall& call) {
  return call.random.used ? call.random.seed_and_offset() : std::pair<uint64_t, uint64_t>{0, 0};
}

// Stores the values in the device tensor that the backward will read. If the tensor is on the host, the kernel's own
// code has filled it.
void store(const c10::IValue& tensor, std::initializer_list<uint64_t> values) {
  const at::Tensor& target = tensor.toTensor();
  if (!target.defined() || target.numel() < static_cast<int64_t>(values.size())) return;
  auto* data = static_cast<uint64_t*>(target.mutable_data_ptr());
  for (const uint64_t value : values) *data++ = value;
}

uint64_t load(const at::Tensor& tensor, int64_t index) {
  return static_cast<const uint64_t*>(tensor.const_data_ptr())[index];
}

// The rows of the target are padded to a multiple of 32.
void store_log_sum(const c10::IValue& target, const at::Tensor& log_sum) {
  const at::Tensor& t = target.toTensor();
  if (t.defined() && t.numel() > 0) t.narrow(-1, 0, log_sum.size(-1)).copy_(log_sum);
}

at::Tensor like(const at::Tensor& value, const at::Tensor& original) { return value.to(original.scalar_type()); }

// (query, key, value, dropout, causal, debug mask, scale) → (output, logsumexp, …, rng_state at 6, …)
void flash(const TwinCall& call) {
  const auto [seed, offset] = state_of(call);
  const Forward f = forward(make_problem(call.tensor(0), call.tensor(1), call.tensor(2), {}, call.number(3),
                                         call.arguments[4].toBool(), call.arguments[6]),
                            seed, offset);
  store_log_sum(call.outputs[1], f.log_sum);
  store(call.outputs[6], {seed, offset});
  call.arguments = {like(f.output, call.tensor(0))};
}

// (grad, query, key, value, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout, causal, rng_state, unused, scale)
void flash_backward(const TwinCall& call) {
  const Problem p = make_problem(call.tensor(1), call.tensor(2), call.tensor(3), {}, call.number(10),
                                 call.arguments[11].toBool(), call.arguments[14]);
  const Gradients g = p.dropout > 0 ? backward(p, call.tensor(0), load(call.tensor(12), 0), load(call.tensor(12), 1))
                                    : backward(p, call.tensor(0), 0, 0);
  call.arguments = {like(g.query, call.tensor(1)), like(g.key, call.tensor(2)), like(g.value, call.tensor(3))};
}

// (query, key, value, bias?, logsumexp wanted, dropout, causal, scale) → (output, logsumexp, seed, offset)
void efficient(const TwinCall& call) {
  const auto [seed, offset] = state_of(call);
  const Forward f = forward(make_problem(call.tensor(0), call.tensor(1), call.tensor(2), call.optional(3),
                                         call.number(5), call.arguments[6].toBool(), call.arguments[7]),
                            seed, offset);
  store_log_sum(call.outputs[1], f.log_sum);
  store(call.outputs[2], {seed});
  store(call.outputs[3], {offset});
  call.arguments = {like(f.output, call.tensor(0))};
}

// (grad, query, key, value, bias, out, logsumexp, seed, offset, dropout, mask, causal, scale)
void efficient_backward(const TwinCall& call) {
  const Problem p = make_problem(call.tensor(1), call.tensor(2), call.tensor(3), call.optional(4), call.number(9),
                                 call.arguments[11].toBool(), call.arguments[12]);
  const Gradients g = p.dropout > 0 ? backward(p, call.tensor(0), load(call.tensor(7), 0), load(call.tensor(8), 0))
                                    : backward(p, call.tensor(0), 0, 0);
  at::Tensor bias;
  if (const at::Tensor& wanted = call.outputs[3].toTensor(); g.bias.defined() && wanted.defined())
    bias = like(g.bias.sum_to_size(wanted.sizes()), wanted);
  call.arguments = {like(g.query, call.tensor(1)), like(g.key, call.tensor(2)), like(g.value, call.tensor(3)), bias};
}

// (query, key, value, bias?, logsumexp wanted, dropout, causal, debug mask, scale)
//   → (output, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, debug mask)
void cudnn(const TwinCall& call) {
  const auto [seed, offset] = state_of(call);
  const at::Tensor &query = call.tensor(0), &key = call.tensor(1);
  const Forward f = forward(make_problem(query, key, call.tensor(2), call.optional(3), call.number(5),
                                         call.arguments[6].toBool(), call.arguments[8]),
                            seed, offset);
  const at::Tensor seed_out = at::empty({}, at::kLong), offset_out = at::empty({}, at::kLong);
  store(seed_out, {seed});
  store(offset_out, {offset});
  const int64_t rows = query.size(2), columns = key.size(2);
  call.arguments = {
      like(f.output, query), f.log_sum.unsqueeze(-1), at::Tensor(), at::Tensor(), rows, columns, seed_out, offset_out,
      at::Tensor()};
}

// (grad, query, key, value, out, logsumexp, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout, causal, scale)
void cudnn_backward(const TwinCall& call) {
  const Problem p = make_problem(call.tensor(1), call.tensor(2), call.tensor(3), call.optional(8), call.number(13),
                                 call.arguments[14].toBool(), call.arguments[15]);
  const Gradients g = p.dropout > 0 ? backward(p, call.tensor(0), load(call.tensor(6), 0), load(call.tensor(7), 0))
                                    : backward(p, call.tensor(0), 0, 0);
  call.arguments = {like(g.query, call.tensor(1)), like(g.key, call.tensor(2)), like(g.value, call.tensor(3))};
}

}  // namespace

void add_attention_twins(HandWrittenTwins& twins) {
  twins["aten::_scaled_dot_product_flash_attention"] = {Mode::beside, flash};
  twins["aten::_scaled_dot_product_flash_attention_backward"] = {Mode::beside, flash_backward};
  twins["aten::_scaled_dot_product_efficient_attention"] = {Mode::beside, efficient};
  twins["aten::_scaled_dot_product_efficient_attention_backward"] = {Mode::beside, efficient_backward};
  twins["aten::_scaled_dot_product_cudnn_attention"] = {Mode::instead, cudnn};
  twins["aten::_scaled_dot_product_cudnn_attention_backward"] = {Mode::instead, cudnn_backward};
}

}  // namespace simulated_cuda
