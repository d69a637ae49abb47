#include "weight_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fulgur/core/contracts/module.h>

#include <vector>

void WeightNorm::on_train_epoch_end(fulgur::RunContext& run) {
  std::vector<fulgur::Tensor> parameters;
  // With strategies that divide parameters among ranks, `gather` gives the whole of each; with others, a copy.
  for (const auto& named : run.module().named_parameters())
    if (named.key().starts_with(options_.prefix)) parameters.push_back(run.gather(named.value()));
  if (parameters.empty()) return;
  const at::NoGradGuard no_grad;
  // The value stays on the device: the run reads it when it writes a row.
  run.log("weight_norm", at::linalg_vector_norm(at::stack(at::_foreach_norm(parameters))));
}

FULGUR_REGISTER(fulgur::Callback, WeightNorm, "Logs the norm of parameters at the end of each epoch.");
