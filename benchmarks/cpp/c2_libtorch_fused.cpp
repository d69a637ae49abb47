// C2, the floor: a loop by hand on LibTorch's kernels, without anything around it.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "mlp.h"

int main(int count, char** values) {
  const bench::Arguments arguments(count, values);
  bench::prepare();
  const bench::Inputs inputs(arguments);
  bench::Mlp net;
  net.load(arguments.text("inputs") + "/weights.safetensors");
  bench::Losses losses;

  const std::vector<at::Tensor> params = net.parameters();
  std::vector<at::Tensor> averages, squares, steps, grads(params.size());
  for (const auto& p : params) {
    averages.push_back(at::zeros_like(p));
    squares.push_back(at::zeros_like(p));
    steps.push_back(at::zeros({}));
  }
  bench::Laps laps;
  for (int64_t epoch = 0; epoch < arguments.number("epochs"); ++epoch) {
    laps.stamp();
    const at::Tensor order = inputs.order[epoch];
    for (int64_t at = 0; at < inputs.samples(); at += bench::kBatch) {
      const at::Tensor rows = order.narrow(0, at, std::min(bench::kBatch, inputs.samples() - at));
      const at::Tensor loss = net.loss(inputs.x.index_select(0, rows), inputs.y.index_select(0, rows));
      losses.add(loss);
      loss.backward();
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < params.size(); ++i) grads[i] = params[i].grad();
      at::_foreach_add_(steps, 1);
      at::_fused_adamw_(params, grads, averages, squares, {}, steps, bench::kRate, 0.9, 0.999, 0.01, 1e-8, false, false,
                        std::nullopt, std::nullopt);
      for (const auto& p : params) p.mutable_grad().reset();
    }
  }
  laps.stamp();
  bench::write_report(arguments, {{"samples", laps.samples()}, {"losses", losses.report(net, inputs)}});
}
