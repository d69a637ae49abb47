// Recurrent layers: the whole layers of cuDNN, and the fused cells that LibTorch uses if cuDNN is disabled.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <thread>

#include "philox.h"
#include "twin.h"
#include "widened.h"

namespace simulated_cuda {
namespace {

enum CudnnMode { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

struct Layers {
  std::vector<at::Tensor> weights;
  int64_t per_direction = 0, mode = 0, layers = 0;
  bool batch_first = false, train = false, bidirectional = false;
  double dropout = 0;
  std::vector<int64_t> batch_sizes;  // of packed sequences; otherwise empty
  uint64_t seed = 0, offset = 0;     // of the dropout between layers
};

struct Result {
  at::Tensor output, hy, cy;
};

Result one_layer(const Layers& l, int64_t layer, const at::Tensor& input, const at::Tensor& hx, const at::Tensor& cx) {
  const int64_t directions = l.bidirectional ? 2 : 1, first = layer * directions * l.per_direction;
  const std::vector<at::Tensor> weights(l.weights.begin() + first,
                                        l.weights.begin() + first + directions * l.per_direction);
  // Without biases there are two weights per direction, or three with a projection.
  const bool biases = l.per_direction >= 4;
  const at::Tensor h = hx.narrow(0, layer * directions, directions).contiguous();
  const bool packed = !l.batch_sizes.empty();
  const at::Tensor sizes = packed ? at::empty({static_cast<int64_t>(l.batch_sizes.size())}, at::kLong) : at::Tensor();
  for (size_t i = 0; i < l.batch_sizes.size(); ++i) sizes.mutable_data_ptr<int64_t>()[i] = l.batch_sizes[i];
  if (l.mode == kLstm) {
    const at::Tensor states[] = {h, cx.narrow(0, layer * directions, directions).contiguous()};
    auto [y, hy, cy] = packed ? at::lstm(input, sizes, states, weights, biases, 1, 0., l.train, l.bidirectional)
                              : at::lstm(input, states, weights, biases, 1, 0., l.train, l.bidirectional, false);
    return {y, hy, cy};
  }
  const auto run = [&](auto whole, auto in_packs) {
    auto [y, hy] = packed ? in_packs(input, sizes, h, weights, biases, 1, 0., l.train, l.bidirectional)
                          : whole(input, h, weights, biases, 1, 0., l.train, l.bidirectional, false);
    return Result{y, hy, at::Tensor()};
  };
#define OF_BOTH(name) run([](auto&&... a) { return at::name(a...); }, [](auto&&... a) { return at::name(a...); })
  if (l.mode == kGru) return OF_BOTH(gru);
  return l.mode == kRelu ? OF_BOTH(rnn_relu) : OF_BOTH(rnn_tanh);
#undef OF_BOTH
}

Result run_layers(const Layers& l, at::Tensor input, const at::Tensor& hx, const at::Tensor& cx) {
  const bool turned = l.batch_first && l.batch_sizes.empty();
  if (turned) input = input.transpose(0, 1);
  std::vector<at::Tensor> hy, cy;
  for (int64_t layer = 0; layer < l.layers; ++layer) {
    Result r = one_layer(l, layer, input, hx, cx);
    hy.push_back(r.hy);
    if (r.cy.defined()) cy.push_back(r.cy);
    input = r.output;
    if (l.train && l.dropout > 0 && layer + 1 < l.layers)
      input = input *
              Draws(l.seed + static_cast<uint64_t>(layer), l.offset)
                  .keep_mask(input.sizes(), 1 - l.dropout)
                  .to(input.scalar_type()) /
              (1 - l.dropout);
  }
  return {turned ? input.transpose(0, 1) : input, at::cat(hy), cy.empty() ? at::Tensor() : at::cat(cy)};
}

Layers make_layers(const TwinCall& call, size_t mode_at) {
  Layers l;
  l.weights = widened(call.arguments[1].toTensorVector());
  l.per_direction = call.arguments[2].toInt();
  l.mode = call.arguments[mode_at].toInt();
  l.layers = call.arguments[mode_at + 3].toInt();
  l.batch_first = call.arguments[mode_at + 4].toBool();
  l.dropout = call.number(mode_at + 5);
  l.train = call.arguments[mode_at + 6].toBool();
  l.bidirectional = call.arguments[mode_at + 7].toBool();
  l.batch_sizes = call.arguments[mode_at + 8].toIntVector();
  return l;
}

at::Tensor contiguous_or_none(const at::Tensor& value) { return value.defined() ? value.contiguous() : value; }

// (input, weights, weight_stride0, weight_buf?, hx, cx?, mode, hidden, projection, layers, batch_first, dropout, train,
//  bidirectional, batch_sizes, dropout_state?) → (output, hy, cy, reserve, weight_buf). The dropout's state is (seed,
//  number of calls).
void cudnn_rnn(const TwinCall& call) {
  Layers l = make_layers(call, 6);
  const at::Tensor reserve = at::empty({l.train ? 16 : 0}, at::kByte);
  if (const auto state = call.optional(15); state && l.train) {
    auto* const numbers = static_cast<uint64_t*>(state->mutable_data_ptr());
    l.seed = numbers[0];
    l.offset = 4 * numbers[1]++;
    auto* const kept = static_cast<uint64_t*>(reserve.mutable_data_ptr());
    kept[0] = l.seed;
    kept[1] = l.offset;
  }
  const at::Tensor& input = call.tensor(0);
  const Result r =
      run_layers(l, widened(input), widened(call.tensor(4)), widened(call.optional(5)).value_or(at::Tensor()));
  const at::Tensor none = at::empty({0}, input.options());
  call.arguments = {in_dtype_of(r.output, input).contiguous(), in_dtype_of(r.hy, input).contiguous(),
                    r.cy.defined() ? in_dtype_of(r.cy, input).contiguous() : none, reserve,
                    call.optional(3).value_or(none)};
}

// Autograd needs a thread with the dispatch state of a program, not with the state inside a kernel.
void on_fresh_thread(const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

// (input, weights, weight_stride0, weight_buf, hx, cx?, output, grad_output?, grad_hy?, grad_cy?, mode, …,
// dropout_state?, reserve, mask)
//   → (grads of input, hx, cx, weights); runs the forward again under autograd
void cudnn_rnn_backward(const TwinCall& call) {
  Layers l = make_layers(call, 10);
  if (const at::Tensor& reserve = call.tensor(20); l.dropout > 0 && reserve.numel() >= 16) {
    const auto* const kept = static_cast<const uint64_t*>(reserve.const_data_ptr());
    l.seed = kept[0];
    l.offset = kept[1];
  }
  std::vector<at::Tensor> gradients;
  const bool has_cx = call.optional(5).has_value();
  on_fresh_thread([&] {
    const at::AutoGradMode with_gradients(true);
    const auto leaf = [](const at::Tensor& value) { return widened(value.detach()).clone().requires_grad_(true); };
    const at::Tensor input = leaf(call.tensor(0)), hx = leaf(call.tensor(4)),
                     cx = has_cx ? leaf(*call.optional(5)) : at::Tensor();
    for (at::Tensor& weight : l.weights) weight = leaf(weight);
    const Result r = run_layers(l, input, hx, cx);
    std::vector<at::Tensor> outputs, grads, inputs{input, hx};
    if (has_cx) inputs.push_back(cx);
    inputs.insert(inputs.end(), l.weights.begin(), l.weights.end());
    const at::Tensor made[] = {r.output, r.hy, r.cy};
    for (size_t i = 0; i < 3; ++i)
      if (const auto grad = call.optional(7 + i); grad && made[i].defined()) {
        outputs.push_back(made[i]);
        grads.push_back(widened(*grad));
      }
    gradients = torch::autograd::grad(outputs, inputs, grads, /*retain_graph=*/false, /*create_graph=*/false,
                                      /*allow_unused=*/true);
    for (size_t i = 0; i < gradients.size(); ++i)
      if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i].detach());
  });
  for (at::Tensor& gradient : gradients) gradient = in_dtype_of(gradient.detach(), call.tensor(0));
  const size_t first_weight = has_cx ? 3 : 2;
  c10::List<at::Tensor> weights;
  for (size_t i = first_weight; i < gradients.size(); ++i) weights.push_back(gradients[i]);
  call.arguments = {contiguous_or_none(gradients[0]), contiguous_or_none(gradients[1]),
                    has_cx ? contiguous_or_none(gradients[2]) : at::Tensor(), weights};
}

// (dropout, train, seed, …) → the state of the dropout between layers
void init_dropout_state(const TwinCall& call) {
  const at::Tensor state = at::empty({16}, at::kByte);
  auto* const numbers = static_cast<uint64_t*>(state.mutable_data_ptr());
  numbers[0] = static_cast<uint64_t>(call.arguments[2].toInt());
  numbers[1] = 0;
  call.arguments = {state};
}

// (input gates, hidden gates, cx, input_bias?, hidden_bias?) → (hy, cy, workspace)
void lstm_cell(const TwinCall& call) {
  at::Tensor gates = call.tensor(0) + call.tensor(1);
  for (const size_t bias : {size_t{3}, size_t{4}})
    if (call.optional(bias)) gates = gates + *call.optional(bias);
  const auto parts = gates.chunk(4, 1);
  const at::Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), n = parts[2].tanh(), o = parts[3].sigmoid(),
                   cy = f * call.tensor(2) + i * n;
  call.arguments = {o * cy.tanh(), cy, at::cat({i, f, n, o}, 1)};
}

// (grad_hy?, grad_cy?, cx, cy, workspace, has_bias) → (grad of gates, of cx, of the bias)
void lstm_cell_backward(const TwinCall& call) {
  const at::Tensor &cx = call.tensor(2), &cy = call.tensor(3);
  const auto parts = call.tensor(4).chunk(4, 1);
  const at::Tensor &i = parts[0], &f = parts[1], &n = parts[2], &o = parts[3], tanh = cy.tanh();
  const at::Tensor grad_h = call.optional(0).value_or(at::zeros_like(cy));
  const at::Tensor grad_c = call.optional(1).value_or(at::zeros_like(cy)) + grad_h * o * (1 - tanh * tanh);
  const at::Tensor gates = at::cat(
      {grad_c * n * i * (1 - i), grad_c * cx * f * (1 - f), grad_c * i * (1 - n * n), grad_h * tanh * o * (1 - o)}, 1);
  call.arguments = {gates, grad_c * f, call.arguments[5].toBool() ? gates.sum(0) : at::Tensor()};
}

// (input gates, hidden gates, hx, input_bias?, hidden_bias?) → (hy, workspace)
void gru_cell(const TwinCall& call) {
  at::Tensor a = call.tensor(0), b = call.tensor(1);
  const at::Tensor& hx = call.tensor(2);
  if (call.optional(3)) a = a + *call.optional(3);
  if (call.optional(4)) b = b + *call.optional(4);
  const auto i = a.chunk(3, 1), h = b.chunk(3, 1);
  const at::Tensor r = (i[0] + h[0]).sigmoid(), z = (i[1] + h[1]).sigmoid(), n = (i[2] + r * h[2]).tanh();
  call.arguments = {n + z * (hx - n), at::cat({r, z, n, hx, h[2]}, 1)};
}

// (grad_hy, workspace, has_bias) → (grads of input gates, hidden gates, hx, input bias, hidden bias)
void gru_cell_backward(const TwinCall& call) {
  const at::Tensor& grad = call.tensor(0);
  const auto parts = call.tensor(1).chunk(5, 1);
  const at::Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &hn = parts[4];
  const at::Tensor gz = grad * (hx - n) * (1 - z) * z, gn = grad * (1 - z) * (1 - n * n), gr = gn * hn * (1 - r) * r;
  const at::Tensor input = at::cat({gr, gz, gn}, 1), hidden = at::cat({gr, gz, gn * r}, 1);
  const bool bias = call.arguments[2].toBool();
  call.arguments = {input, hidden, grad * z, bias ? input.sum(0) : at::Tensor(), bias ? hidden.sum(0) : at::Tensor()};
}

}  // namespace

void add_recurrent_twins(HandWrittenTwins& twins) {
  twins["aten::_cudnn_rnn"] = {Mode::instead, cudnn_rnn};
  twins["aten::_cudnn_rnn_backward"] = {Mode::instead, cudnn_rnn_backward};
  twins["aten::_cudnn_init_dropout_state"] = {Mode::instead, init_dropout_state};
  twins["aten::_thnn_fused_lstm_cell"] = {Mode::beside, lstm_cell};
  twins["aten::_thnn_fused_lstm_cell_backward_impl"] = {Mode::beside, lstm_cell_backward};
  twins["aten::_thnn_fused_gru_cell"] = {Mode::beside, gru_cell};
  twins["aten::_thnn_fused_gru_cell_backward"] = {Mode::beside, gru_cell_backward};
}

}  // namespace simulated_cuda
