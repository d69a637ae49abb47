#include "checkpointing/restore_optimizers.h"

#include <tuple>
#include <utility>
#include <vector>

#include "fulgur/core/text.h"

namespace fulgur::detail {

void load_lr_factor(Restoring& r, const StateTree& value) {
  RunState& run = r.run;
  const double saved = value.as_double();
  if (run.options.scale_lr == ScaleLr::none) {
    run.lr_factor = saved;
    return;
  }
  r.rates_scaled = run.lr_factor / saved;
  if (r.rates_scaled != 1)
    run.print(cat("learning rates: those of the checkpoint × ", r.rates_scaled,
                  " (scale_lr: ", enum_text(run.options.scale_lr), ", for another global batch)"));
}

void load_optimizers(Restoring& r, const StateTree& value) {
  RunState& run = r.run;
  const auto& optimizers = value.as_list();
  if (optimizers.size() != run.plan.optimizers.size())
    throw CheckpointError(cat("[trainer.fit] the checkpoint has ", static_cast<int64_t>(optimizers.size()),
                              " optimizers, the run ", static_cast<int64_t>(run.plan.optimizers.size()), "."));
  for (size_t i = 0; i < optimizers.size(); ++i) {
    Optimizer& optimizer = *run.plan.optimizers[i].optimizer;
    std::vector<std::pair<double, double>> rates;
    for (const ParamGroup& group : optimizer.groups()) rates.emplace_back(group.lr, group.initial_lr);
    optimizer.load_state(optimizers[i]);
    if (r.rates_scaled != 1) optimizer.scale_lr(r.rates_scaled);
    if (r.load.allow_config_change)
      for (size_t g = 0; g < rates.size(); ++g)
        std::tie(optimizer.groups()[g].lr, optimizer.groups()[g].initial_lr) = rates[g];
  }
}

void load_schedules(Restoring& r, const StateTree& value) {
  RunState& run = r.run;
  if (!r.load.loads_lr_scheduler()) return;
  const auto& states = value.as_list();
  for (size_t i = 0; i < states.size() && i < run.plan.optimizers.size(); ++i) {
    PlannedOptimizer& planned = run.plan.optimizers[i];
    if (!planned.scheduler || states[i].is_null()) continue;
    LrScheduler& schedule = *planned.scheduler->scheduler;
    const double pace_before = schedule.pace();
    try {
      schedule.load_state(states[i]);
    } catch (const CheckpointError&) {
      if (!r.load.allow_config_change) throw;
      // A different schedule continues from the same step.
      schedule.LrScheduler::load_state(states[i]);
    }
    if (schedule.pace() != pace_before)
      run.print(cat(
          "schedule: steps or epochs have a different number of samples than when the run began; lengths in samples, "
          "epochs or parts of the run stay as they were, and each step counts as ",
          schedule.pace(), " of the original steps"));
  }
}

}  // namespace fulgur::detail
