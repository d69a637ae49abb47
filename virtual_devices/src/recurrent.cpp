#include "registrations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace fulgur::virtual_devices {
namespace {

using at::Tensor;

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}
Tensor sum_of(const Tensor& gradient, bool wanted) { return wanted ? gradient.sum(0) : Tensor(); }

// i, f, o = σ(…), g = tanh(…); c' = f c + i g; h' = o tanh(c'). The gates are saved for backward.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor gh = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  const Tensor tanh_cy = cy.tanh();
  Tensor gc = gh * o * (1 - tanh_cy * tanh_cy);
  if (grad_cy && grad_cy->defined()) gc = gc + *grad_cy;
  const Tensor grad_gates =
      at::cat({gc * g * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - g * g), gh * tanh_cy * o * (1 - o)}, 1);
  return {grad_gates, gc * f, sum_of(grad_gates, has_bias)};
}

// r, z = σ(…), n = tanh(x_n + r h_n); h' = n + z (h - n). Saved for backward: r, z, n, h, h_n.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  const auto x = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto h = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid(), n = (x[2] + r * h[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor &r = kept[0], &z = kept[1], &n = kept[2], &hx = kept[3], &hn = kept[4];
  const Tensor gn = grad_hy * (1 - z) * (1 - n * n);
  const Tensor gr = gn * hn * r * (1 - r), gz = grad_hy * (hx - n) * z * (1 - z);
  const Tensor to_input = at::cat({gr, gz, gn}, 1), to_hidden = at::cat({gr, gz, gn * r}, 1);
  return {to_input, to_hidden, grad_hy * z, sum_of(to_input, has_bias), sum_of(to_hidden, has_bias)};
}

}  // namespace

void register_recurrent() {
  static auto& aten = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                          __LINE__);  // kept until the process ends
  aten.impl("_thnn_fused_lstm_cell", &lstm_cell);
  aten.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  aten.impl("_thnn_fused_gru_cell", &gru_cell);
  aten.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace fulgur::virtual_devices
