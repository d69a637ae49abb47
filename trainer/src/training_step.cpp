// A training step, in order. A test pins it; docs/architecture.md describes it. Nothing here waits for a device.
#include "training_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include "fulgur/core/log.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {

void step_schedulers(Run& run, ScheduleInterval interval, int64_t count) {
  for (auto& planned : run.plan.optimizers) {
    if (!planned.scheduler || planned.scheduler->interval != interval || count % planned.scheduler->frequency != 0) continue;
    SchedulerConfig& config = *planned.scheduler;
    if (!config.scheduler->wants_metric()) {
      config.scheduler->step();
      continue;
    }
    const auto value = run.metric(config.monitor.value_or(""));
    if (value) {
      config.scheduler->step(*value);
    } else {
      const std::string message = cat("[trainer.lr_scheduler] the monitored metric '", config.monitor.value_or(""),
                                      "' was not logged; there are: ", join(run.metric_names()), ".");
      if (config.strict) throw ConfigError(message);
      log::warn("lr_scheduler.monitor_missing", message);
    }
  }
}

TrainingStep::TrainingStep(Run& run)
    : run_(run),
      optimizer_(run.plan.optimizers.front().optimizer.get()),
      clip_algorithm_(run.options.gradient_clip_algorithm == "value" ? ClipAlgorithm::value : ClipAlgorithm::norm) {}

bool TrainingStep::run_batch(Batch batch, int64_t batch_idx, std::optional<int64_t> batches_in_epoch) {
  Run& run = run_;
  LightningModule& module = *run.model;
  run.batch_idx_ = batch_idx;
  run.progress_.batches.ready = run.progress_.batches.started = batch_idx + 1;
  ++run.progress_.batches_total.ready;

  batch = run.strategy->batch_to_device(module, std::move(batch), 0);
  const int64_t samples = batch.size();
  run.batch_samples_ = static_cast<double>(samples);

  run.each_callback(LogScope::train_step, Hook::on_train_batch_start,
                    [&](Callback& c) { c.on_train_batch_start(run, batch, batch_idx); });
  Run::ScopeGuard scope(run, LogScope::train_step);
  const bool skip_rest = module.on_train_batch_start(batch, batch_idx) == -1;
  StepOutput output;
  if (!skip_rest) {
    ++run.progress_.batches_total.started;
    // A window begins here; its real length is known now where the loader's is.
    if (run.window_done == 0) {
      run.window_length = run.accumulation;
      if (batches_in_epoch) run.window_length = std::min(run.accumulation, *batches_in_epoch - batch_idx);
    }
    const bool last_of_window = run.window_done + 1 == run.window_length;
    output = forward_backward(batch, batch_idx, last_of_window);
    ++run.window_done;
    run.progress_.samples_seen += samples;
    if (last_of_window) optimizer_step();
    ++run.progress_.batches_total.processed;
    run.progress_.batches.processed = batch_idx + 1;

    run.each_callback(LogScope::train_step, Hook::on_train_batch_end,
                      [&](Callback& c) { c.on_train_batch_end(run, output, batch, batch_idx); });
    module.on_train_batch_end(output, batch, batch_idx);
    ++run.progress_.batches_total.completed;
    run.progress_.batches.completed = batch_idx + 1;
  }
  return !skip_rest;
}

StepOutput TrainingStep::forward_backward(const Batch& batch, int64_t batch_idx, bool last_of_window) {
  Run& run = run_;
  LightningModule& module = *run.model;
  Precision& precision = run.strategy->precision();
  StepOutput output;
  {
    const auto guard = precision.forward_guard();
    output = module.training_step(batch, batch_idx);
  }
  output.extra = output.extra.detach();
  if (!output.loss.defined()) {
    if (run.world_size() > 1)
      throw DistributedError("[trainer.training_step] training_step returned no loss; with several ranks every rank must return one.");
    return output;
  }
  if (output.loss.numel() != 1)
    throw Error(cat("[trainer.training_step] the loss must be a scalar; got a tensor of ", static_cast<int64_t>(output.loss.numel()),
                    " elements. Reduce it, for example with .mean()."));
  if (!output.loss.requires_grad())
    throw Error("[trainer.training_step] the loss has no graph, so nothing can be learned from it. Was it detached, or computed under NoGradGuard?");
  Tensor loss = output.loss;
  if (run.window_length > 1) loss = loss / static_cast<double>(run.window_length);
  loss = precision.scale(loss);
  run.each_callback(LogScope::train_step, Hook::on_before_backward, [&](Callback& c) { c.on_before_backward(run, loss); });
  module.on_before_backward(loss);
  run.strategy->backward(loss, last_of_window ? GradSync::now : GradSync::deferred);
  run.each_callback(LogScope::train_step, Hook::on_after_backward, [&](Callback& c) { c.on_after_backward(run); });
  module.on_after_backward();
  // The graph is freed now, not when the callbacks are done with the output.
  output.loss = output.loss.detach();
  return output;
}

void TrainingStep::optimizer_step() {
  Run& run = run_;
  LightningModule& module = *run.model;
  Optimizer& optimizer = *optimizer_;
  run.strategy->precision().unscale(optimizer);
  run.each_callback(LogScope::train_step, Hook::on_before_optimizer_step, [&](Callback& c) { c.on_before_optimizer_step(run, optimizer); });
  module.on_before_optimizer_step(optimizer);
  module.configure_gradient_clipping(optimizer, run.options.gradient_clip_val, clip_algorithm_);
  run.strategy->optimizer_step(optimizer, std::nullopt);
  ++run.progress_.global_step;
  step_schedulers(run, ScheduleInterval::step, run.progress_.global_step);
  run.each_callback(LogScope::train_step, Hook::on_before_zero_grad, [&](Callback& c) { c.on_before_zero_grad(run, optimizer); });
  module.on_before_zero_grad(optimizer);
  optimizer.zero_grad();
  run.window_done = 0;
}

void TrainingStep::close_window() {
  Run& run = run_;
  if (run.window_done == 0) return;
  // Each loss was divided by the full length; the real one is known only now.
  at::NoGradGuard no_grad;
  const std::vector<Tensor> gradients = optimizer_->gradients();
  if (run.window_done != run.window_length && !gradients.empty())
    at::_foreach_mul_(gradients, static_cast<double>(run.window_length) / static_cast<double>(run.window_done));
  Run::ScopeGuard scope(run, LogScope::train_step);
  optimizer_step();
}

}  // namespace fulgur::detail
