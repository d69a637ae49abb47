#include "loops/rewind.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "fulgur/core/state/let_go.h"
#include "fulgur/core/state/rng.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {
namespace {

// The tensors whose gradients a step uses: the module's parameters, and shards that have the exchanged gradients.
std::vector<Tensor> gradient_holders(const RunState& run) {
  std::vector<Tensor> holders;
  for (const auto& [name, value] : unique_parameters(*run.model)) holders.push_back(value);
  for (const PlannedOptimizer& planned : run.plan.optimizers)
    if (planned.optimizer->gradients_are_shards())
      for (const ParamGroup& group : planned.optimizer->groups())
        holders.insert(holders.end(), group.params.begin(), group.params.end());
  return holders;
}

}  // namespace

void take_rewind_point(RunState& run, const Services& services, std::optional<StateTree> loggers) {
  const at::NoGradGuard no_grad;
  RewindPoint now{.counters = run.counters,
                  .seen = services.seen.mark(),
                  .logs = services.logs.mark(),
                  .metrics = services.metrics.mark(),
                  .rng = rng_state(run.strategy->devices()),
                  .loaders = {},
                  .callbacks = CallbackStates(run.callbacks),
                  .loggers = std::move(loggers),
                  .buffers = {},
                  .gradients = {},
                  .window_length = run.window.length,
                  .window_done = run.window.done,
                  .window_losses = run.window.losses,
                  .logged_step = run.logged_step,
                  .batch_samples = run.position.batch_samples};
  for (const auto& loader : run.stages[RunningStage::train].loaders) now.loaders.push_back(loader->state());
  for (const Tensor& buffer : run.model->buffers())
    if (buffer.defined()) now.buffers.emplace_back(buffer, buffer.clone());
  for (const Tensor& value : gradient_holders(run))
    now.gradients.emplace_back(value, value.grad().defined() ? value.grad().clone() : Tensor());
  run.rewind_point = std::move(now);
}

void restore_rewind_point(RunState& run, Services& services) {
  const at::NoGradGuard no_grad;
  const RewindPoint& then = *run.rewind_point;
  const double fit_time_s = run.counters.fit_time_s;
  run.counters = then.counters;
  run.counters.fit_time_s = fit_time_s;
  services.seen.restore(then.seen);
  services.logs.restore(then.logs);
  services.metrics.restore(then.metrics);
  load_rng_state(run.strategy->devices(), then.rng);
  then.callbacks.restore();
  if (then.loggers) run.loggers_before = then.loggers;
  for (const auto& [buffer, values] : then.buffers) buffer.copy_(values);
  for (const auto& [parameter, gradient] : then.gradients) parameter.mutable_grad() = gradient;
  run.window.length = then.window_length;
  run.window.done = then.window_done;
  run.window.losses = then.window_losses;
  run.logged_step = then.logged_step;
  run.position.batch_samples = then.batch_samples;
  run.rewound = true;
}

void count_stepped_batch(RunState& run) {
  Progress& counters = run.counters;
  // In manual optimization the step is counted after training_step.
  if (counters.global_step == run.step.global_step_before) ++counters.global_step;
  counters.batches.processed = counters.batches.completed = counters.batches.started;
  counters.batches_total.processed = counters.batches_total.completed = counters.batches_total.started;
}

void rewind_to_batch_start(RunState& run, Services& services) {
  if (!run.position.in_batch) return;
  run.position.in_batch = false;
  let_go(run.position.batch);
  Progress& counters = run.counters;
  if (run.step.progress == StepProgress::done) {
    count_stepped_batch(run);
    if (!run.failed_alone) services.rows.end_batch(RunningStage::train, false);
  } else if (run.rewind_point) {
    services.rows.drop_media_of_batch();
    restore_rewind_point(run, services);
  } else {
    services.rows.drop_media_of_batch();
    // Values that the batch logged and random numbers that it drew are kept, so a run cannot resume from this state.
    services.checkpoints.discard_requests("the batch in which it was requested has failed");
    counters.batches.fall_back();
    counters.batches_total.fall_back();
    services.seen.fall_back();
    run.stages[RunningStage::train].loaders.front()->unread();
  }
  // Gradients of the window's earlier batches are still needed.
  if (run.step.progress == StepProgress::none || run.rewound) return;
  // Gradients of an unfinished backward are useless.
  for (const Tensor& value : gradient_holders(run)) value.mutable_grad().reset();
  run.window.restart();
}

}  // namespace fulgur::detail
