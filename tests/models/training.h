#pragma once

#include "fulgur/core/contracts/module.h"

namespace fulgur::test {

/// Plain gradient steps on one batch; the losses of each step.
inline std::vector<double> descend(LightningModule& module, const Batch& batch, int steps, double lr) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    module.zero_grad();
    const Tensor loss = module.training_step(batch, step).loss;
    loss.backward();
    at::NoGradGuard no_grad;
    for (const auto& parameter : unique_parameters(module)) parameter.value.sub_(parameter.value.grad(), lr);
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace fulgur::test
