#include "checkpointing/restore_optimizers.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "fulgur/core/text/text.h"

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
    run.print(cat("learning rates: the rates of the checkpoint are multiplied by ", r.rates_scaled,
                  " (scale_lr: ", enum_text(run.options.scale_lr), "), since the global batch has changed"));
}

void load_optimizers(Restoring& r, const StateTree& value) {
  RunState& run = r.run;
  const auto& optimizers = value.as_list();
  if (optimizers.size() != run.plan.optimizers.size())
    throw CheckpointError(cat("[trainer.fit] the checkpoint has ", static_cast<int64_t>(optimizers.size()),
                              " optimizers, but the run has ", static_cast<int64_t>(run.plan.optimizers.size()), "."));
  for (size_t i = 0; i < optimizers.size(); ++i) {
    Optimizer& optimizer = *run.plan.optimizers[i].optimizer;
    std::vector<std::pair<double, double>> rates;
    for (const ParamGroup& group : optimizer.groups()) rates.emplace_back(group.lr, group.initial_lr);
    run.strategy->load_optimizer_state(optimizer, optimizers[i]);
    if (r.rates_scaled != 1) optimizer.scale_lr(r.rates_scaled);
    if (r.load.allow_config_change)
      for (size_t g = 0; g < rates.size(); ++g)
        std::tie(optimizer.groups()[g].lr, optimizer.groups()[g].initial_lr) = rates[g];
  }
}

namespace {

// The length of the run as the state of a schedule has it: "400 steps"; empty if it has none.
std::string run_length_in(const StateTree& schedule) {
  if (!schedule.contains("part")) return {};
  const StateTree& part = schedule.at("part");
  if (!part.at("steps").is_null()) return counted(part.at("steps").as_int(), "step");
  return part.at("epochs").is_null() ? std::string() : counted(part.at("epochs").as_int(), "epoch");
}

// With another limit, `auto` and parts of the run are other lengths, so the rate at this step may differ.
void report_moved_rate(RunState& run, const Optimizer& optimizer, const std::vector<double>& saved_rates,
                       const std::string& length_before, const std::string& length_now) {
  if (length_before == length_now || length_before.empty() || length_now.empty()) return;
  for (size_t g = 0; g < saved_rates.size(); ++g) {
    const double now = optimizer.groups()[g].lr, before = saved_rates[g];
    if (std::abs(now - before) <= 0.01 * std::max(now, before)) continue;
    run.print(cat("schedule: the learning rate of ", optimizer.name(), " continues at ", now,
                  "; in the checkpoint it was ", before, ", because the run now has ", length_now, " instead of ",
                  length_before));
    return;
  }
}

// Whether the schedule gives the rates that it gave when it was saved. It does not if the batches, the limits, the
// factor of scale_lr or the code of the schedule have changed. Checkpoints of earlier versions do not say it.
bool gives_same_rates(const LrScheduler& schedule, const StateTree& saved) {
  if (!saved.contains("rates")) return false;
  return std::ranges::equal(schedule.rates(), saved.at("rates").as_list(), {}, {},
                            [](const StateTree& rate) { return rate.as_double(); });
}

}  // namespace

void load_schedules(Restoring& r, const StateTree& value) {
  RunState& run = r.run;
  if (!r.load.loads_lr_scheduler()) return;
  const auto& states = value.as_list();
  for (size_t i = 0; i < states.size() && i < run.plan.optimizers.size(); ++i) {
    PlannedOptimizer& planned = run.plan.optimizers[i];
    if (!planned.scheduler || states[i].is_null()) continue;
    LrScheduler& schedule = *planned.scheduler->scheduler;
    const double pace_before = schedule.pace();
    std::vector<double> saved_rates;
    for (const ParamGroup& group : planned.optimizer->groups()) saved_rates.push_back(group.lr);
    try {
      schedule.load_state(states[i]);
    } catch (const CheckpointError&) {
      if (!r.load.allow_config_change) throw;
      // A different schedule continues from the same step.
      schedule.LrScheduler::load_state(states[i]);
    }
    // Callbacks and hooks may have set the rates after the last step of the schedule.
    if (!r.load.allow_config_change && gives_same_rates(schedule, states[i]))
      for (size_t g = 0; g < saved_rates.size(); ++g) planned.optimizer->groups()[g].lr = saved_rates[g];
    if (schedule.pace() != pace_before)
      run.print(cat(
          "schedule: steps or epochs have a different number of samples than when the run began; lengths in samples, "
          "epochs or parts of the run stay as they were, and each step counts as ",
          schedule.pace(), " of the original steps"));
    // With this option the optimizer already has the config's rates.
    if (!r.load.allow_config_change)
      report_moved_rate(run, *planned.optimizer, saved_rates, run_length_in(states[i]),
                        run_length_in(schedule.state()));
  }
}

}  // namespace fulgur::detail
