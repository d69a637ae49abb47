#include "run/batch_sizes.h"

#include <algorithm>
#include <utility>

#include "fulgur/callbacks/gradient_accumulation_scheduler.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool changes_batches(const RunState& run) { return run.batch_sizes && !run.batch_sizes->plan.accumulates; }

void set_batch_size(RunState& run, int64_t size) {
  StageLoaders& train = run.stages.at(RunningStage::train);
  train.loaders.front()->set_batch_size(size);
  train.batches.front() = run.batch_sizes->of_epoch.at(size);
}

int64_t batch_size_now(const RunState& run) { return run.stages.at(RunningStage::train).loaders.front()->batch_size(); }

// A batch cannot have more samples than an epoch.
int64_t samples_in_batch(const RunState& run, int64_t size) {
  const auto samples = run.stages.at(RunningStage::train).loaders.front()->samples();
  return samples ? std::min(size, *samples) : size;
}

const char* on_each_rank(const RunState& run) { return run.world_size() > 1 ? ", on each rank" : ""; }

// An epoch that steps are counted to has whole windows, except the last one.
int64_t windows_of(int64_t batches, int64_t window) { return (batches + window - 1) / window; }

}  // namespace

std::optional<BatchSizePlan> find_batch_size_plan(const RunState& run, int64_t own) {
  const Callback* planning = nullptr;
  for (const auto& callback : run.callbacks) {
    if (!dynamic_cast<const PlansBatchSizes*>(callback.get())) continue;
    if (planning)
      throw ConfigError(cat("[trainer.callbacks] one callback of a run may plan the batch size; ",
                            planning->state_key(), " and ", callback->state_key(), " do. Remove one of them."));
    planning = callback.get();
  }
  if (!planning) return std::nullopt;
  const std::string key = planning->state_key();
  if (planning->filter().is_set())
    throw ConfigError(cat("[trainer.callbacks] ", key,
                          " plans the batch size of the whole fit; it must not have every, from, until or once beside "
                          "class_path. Put positions into its own options."));
  BatchSizePlan plan = dynamic_cast<const PlansBatchSizes&>(*planning).batch_size_plan(own);
  if (!plan.accumulates) return plan;
  if (run.options.accumulate_grad_batches != 1)
    throw ConfigError(cat("[trainer.callbacks] ", key,
                          " sets how many batches make a step; accumulate_grad_batches must be 1, got ",
                          run.options.accumulate_grad_batches, ". Remove one of the two."));
  if (!run.model->automatic_optimization())
    throw ConfigError(cat("[trainer.callbacks] ", key,
                          " sets how many batches make a step, but a module with manual optimization makes its own "
                          "steps. Let it change the batches instead (by: batch)."));
  if (std::ranges::any_of(run.callbacks, [](const auto& callback) {
        return dynamic_cast<const GradientAccumulationScheduler*>(callback.get()) != nullptr;
      }))
    throw ConfigError(cat("[trainer.callbacks] ", key,
                          " and GradientAccumulationScheduler both set how many batches make a step. Remove one of "
                          "the two."));
  return plan;
}

void set_batch_size_of_epoch(RunState& run) {
  if (!changes_batches(run)) return;
  const PlannedBatches& planned = *run.batch_sizes;
  set_batch_size(run, planned.plan.size_of_epoch(run.counters.epoch, run.counters.global_step, planned.own));
}

void begin_batch_size_of_epoch(RunState& run) {
  if (!changes_batches(run)) return;
  set_batch_size_of_epoch(run);
  // Loaders may have been created again since the epoch before.
  const int64_t now = batch_size_now(run), before = std::exchange(run.last_batch_size, now);
  if (before > 0 && before != now)
    run.print(cat("batch size: ", samples_in_batch(run, now), " samples instead of ", samples_in_batch(run, before),
                  " in epoch ", run.counters.epoch, on_each_rank(run)));
}

void set_batch_size_of_resumed_epoch(RunState& run, const StateTree& saved) {
  if (!changes_batches(run)) return;
  const int64_t own = run.own_batch_size_saved;
  const bool is_known = saved.contains("batch_size") && (own == 0 || own == run.batch_sizes->own);
  const int64_t size = is_known ? saved.at("batch_size").as_int() : 0;
  const bool under_way = run.counters.in_epoch() && is_known && saved.at("epoch").as_int() == run.counters.epoch;
  // With another plan than the checkpoint's, the rest of the epoch has the batches of the new one.
  if (under_way && run.batch_sizes->of_epoch.contains(size))
    set_batch_size(run, size);
  else
    set_batch_size_of_epoch(run);
  run.last_batch_size = run.counters.in_epoch() ? batch_size_now(run) : size;
}

void plan_window(RunState& run, std::optional<int64_t> batches_in_epoch) {
  if (!run.batch_sizes || !run.batch_sizes->plan.accumulates) return;
  const auto& [plan, own, of_epoch] = *run.batch_sizes;
  const double position =
      plan.in_epochs ? run.counters.epochs_done(batches_in_epoch) : static_cast<double>(run.counters.global_step);
  run.window.target = plan.accumulation_at(position, own);
}

void begin_window(RunState& run, std::optional<int64_t> batches_in_epoch) {
  if (!run.batch_sizes || !run.batch_sizes->plan.accumulates) return;
  plan_window(run, batches_in_epoch);
  const int64_t now = run.window.target, before = std::exchange(run.last_window, now), own = run.batch_sizes->own;
  if (before > 0 && before != now)
    run.print(cat("batch size: ", now * own, " samples (", counted(now, "batch", "batches"), ") instead of ",
                  before * own, " from step ", run.counters.global_step + 1, " on", on_each_rank(run)));
}

FirstEpoch first_epoch_of(const RunState& run) {
  const StageLoaders& train = run.stages.at(RunningStage::train);
  FirstEpoch first{.batches = train.total(),
                   .batch_size = train.loaders.empty() ? 0 : train.loaders.front()->batch_size(),
                   .window = run.window.target};
  if (!run.batch_sizes) return first;
  const auto& [plan, own, of_epoch] = *run.batch_sizes;
  first.batch_size = plan.size_of_epoch(0, 0, own);
  first.batches = of_epoch.at(first.batch_size);
  if (plan.accumulates) first.window = plan.accumulation_at(0, own);
  return first;
}

std::optional<int64_t> steps_of_epochs(const RunState& run, int64_t epochs, std::optional<int64_t> batches) {
  if (!batches) return std::nullopt;
  if (!run.batch_sizes) return windows_of(*batches, run.window.target) * epochs;
  const auto& [plan, own, of_epoch] = *run.batch_sizes;
  return plan.count_steps(epochs, own, run.window.target, run.options.step_limit,
                          [&sizes = of_epoch](int64_t size) { return sizes.at(size).value_or(0); });
}

}  // namespace fulgur::detail
