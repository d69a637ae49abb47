#include "checkpointing/restore_optimizers.h"

#include <tuple>
#include <utility>
#include <vector>

#include "fulgur/core/text.h"
#include "run/run_state.h"

namespace fulgur::detail {

void restore_optimizers(RunState& run, const CheckpointContent& content, const CheckpointLoading& load) {
  const StateTree& state = content.state;
  const auto& optimizers = content.optimizers.as_list();
  const auto& schedulers = state.at("lr_schedulers").as_list();
  if (optimizers.size() != run.plan.optimizers.size() || schedulers.size() != run.plan.optimizers.size())
    throw CheckpointError(cat("[trainer.fit] the checkpoint has ", static_cast<int64_t>(optimizers.size()),
                              " optimizers, the run ", static_cast<int64_t>(run.plan.optimizers.size()), "."));
  // scale_lr follows the batch that the run has now.
  const double saved_factor = state.at("lr_factor").as_double();
  const double scaled = run.options.scale_lr == ScaleLr::none ? 1 : run.lr_factor / saved_factor;
  if (run.options.scale_lr == ScaleLr::none) run.lr_factor = saved_factor;
  if (scaled != 1)
    run.print(cat("learning rates: those of the checkpoint × ", scaled, " (scale_lr: ", enum_text(run.options.scale_lr),
                  ", for another global batch)"));
  for (size_t i = 0; i < optimizers.size(); ++i) {
    PlannedOptimizer& planned = run.plan.optimizers[i];
    std::vector<std::pair<double, double>> rates;
    for (const ParamGroup& group : planned.optimizer->groups()) rates.emplace_back(group.lr, group.initial_lr);
    planned.optimizer->load_state(optimizers[i]);
    if (scaled != 1) planned.optimizer->scale_lr(scaled);
    if (load.allow_config_change)
      for (size_t g = 0; g < rates.size(); ++g)
        std::tie(planned.optimizer->groups()[g].lr, planned.optimizer->groups()[g].initial_lr) = rates[g];
    if (!load.loads_lr_scheduler() || !planned.scheduler || schedulers[i].is_null()) continue;
    LrScheduler& schedule = *planned.scheduler->scheduler;
    const double pace_before = schedule.pace();
    try {
      schedule.load_state(schedulers[i]);
    } catch (const CheckpointError&) {
      if (!load.allow_config_change) throw;
      // Another schedule: it continues from the same step.
      schedule.LrScheduler::load_state(schedulers[i]);
    }
    if (schedule.pace() != pace_before)
      run.print(
          cat("schedule: steps or epochs have another number of samples than when the run began; lengths in samples, "
              "epochs or parts of the run stay as they were, and each step counts as ",
              schedule.pace(), " of theirs"));
  }
  run.strategy->precision().load_state(state.at("precision"));
}

}  // namespace fulgur::detail
