#include "loops/run.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "checkpointing/run_checkpoint.h"
#include "fulgur/core/let_go.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "loops/roll_back.h"
#include "run/memory_format.h"
#include "run/replica_context.h"
#include "run/signals.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

Run::Run(const TrainerOptions& written, const TrainerComponents& trainer_components, TrainerFn fn)
    : RunState(*this, written, trainer_components, fn),
      agreement({.stop_reason = [this] { return stop_reason; },
                 .signal = signals::received,
                 .take_save_request = signals::take_save_request,
                 .save_is_done = [this] { return checkpoints.save_is_done(); }},
                [this](std::string reason) { stop_reason = std::move(reason); }),
      rows(*this, [this](NonFiniteDecision decision) { carry_out(decision); }),
      checkpoints(*this, *this,
                  {.async = options.async_checkpoint, .stops_on_error = options.on_save_error == OnSaveError::stop}),
      fn_(fn) {}

void Run::start() {
  position.setting_up = false;
  position.doing = nullptr;
  agreement.start(collectives(), options.agree_every.value);
}

std::optional<int64_t> Run::num_batches(RunningStage stage) const {
  const auto found = stages.find(stage);
  if (found == stages.end()) return 0;
  if (position.sanity_checking && stage == RunningStage::validate && options.num_sanity_val_steps >= 0) {
    int64_t sum = 0;
    for (const auto& count : found->second.batches)
      sum += std::min(count.value_or(options.num_sanity_val_steps), options.num_sanity_val_steps);
    return sum;
  }
  return found->second.total();
}

std::optional<int64_t> Run::estimated_steps() const {
  std::optional<int64_t> steps;
  const auto batches = num_batches(RunningStage::train);
  if (batches && options.epoch_limit) steps = (*batches + window.target - 1) / window.target * *options.epoch_limit;
  if (options.step_limit >= 0) steps = steps ? std::min(*steps, options.step_limit) : options.step_limit;
  return steps;
}

int64_t Run::num_loaders(RunningStage stage) const {
  const auto found = stages.find(stage);
  return found == stages.end() ? 0 : static_cast<int64_t>(found->second.loaders.size());
}

std::vector<Optimizer*> Run::optimizers() {
  std::vector<Optimizer*> all;
  for (const auto& planned : plan.optimizers) all.push_back(planned.optimizer.get());
  return all;
}

std::optional<double> Run::progress_fraction() const {
  std::optional<double> part;
  const auto at_least = [&](double done, double all) { part = std::max(part.value_or(0), done / all); };
  // By batches: how many make a step may change.
  const auto batches = num_batches(RunningStage::train);
  if (options.epoch_limit && *options.epoch_limit > 0 && batches && *batches > 0) {
    const double of_epoch = static_cast<double>(counters.batches.processed) / static_cast<double>(*batches);
    at_least(std::max(static_cast<double>(counters.epoch) + of_epoch, static_cast<double>(counters.epochs.processed)),
             static_cast<double>(*options.epoch_limit));
  }
  if (options.step_limit > 0)
    at_least(static_cast<double>(counters.global_step), static_cast<double>(options.step_limit));
  if (options.max_time) part = std::max(part.value_or(0), fit_time_s() / options.max_time->value);
  if (part) part = std::min(*part, 1.0);
  return part;
}

std::vector<OptimizerHandle*> Run::optimizer_handles() {
  std::vector<OptimizerHandle*> all;
  for (const auto& handle : handles) all.push_back(handle.get());
  return all;
}

void Run::make_handles() {
  for (const auto& [name, value] : unique_parameters(*model)) parameters_at_start.insert(value.unsafeGetTensorImpl());
  for (const auto& planned : plan.optimizers)
    handles.push_back(std::make_unique<OptimizerHandle>(
        planned.optimizer,
        [this](OptimizerHandle& handle, const Closure& closure) { step_optimizer(handle, closure); }));
}

void Run::step_optimizer(OptimizerHandle& handle, const Closure& closure) {
  if (!step.in_training_step && !step.manual)
    throw Error(
        "[trainer.optimizer_step] the module uses automatic optimization: the Trainer steps the optimizer, and a "
        "module may do so only in its optimizer_step hook. Remove step(), or override automatic_optimization() to "
        "return false.");
  if (!step.in_training_step)
    throw Error(
        "[trainer.optimizer_step] an optimizer is stepped in training_step or in the optimizer_step hook only.");
  step.actions->step_optimizer(handle.optimizer(), closure);
}

void Run::unscale_gradients(Optimizer& optimizer) { strategy->precision().unscale(optimizer); }

void Run::manual_backward(const Tensor& loss, const BackwardOptions& backward_options) {
  if (!step.manual)
    throw Error(
        "[trainer.manual_backward] the module uses automatic optimization, which does backward itself. Return the "
        "loss, or override "
        "automatic_optimization() to return false.");
  if (!step.in_training_step) throw Error("[trainer.manual_backward] backward is called in training_step only.");
  step.actions->manual_backward(loss, backward_options);
}

void Run::rewind_to_batch_start() {
  if (!position.in_batch) return;
  position.in_batch = false;
  let_go(position.batch);
  step.in_training_step = false;
  if (step.stepped) {
    // The batch has changed the weights: it counts.
    counters.batches.processed = counters.batches.completed = counters.batches.started;
    counters.batches_total.processed = counters.batches_total.completed = counters.batches_total.started;
    if (!failed_alone) flush_step_metrics(RunningStage::train, false);
  } else if (rewind_point.there()) {
    rewind_point.restore(*this);
    rewound = true;
  } else {
    // What the batch has logged and drawn stays: this is no state to resume from.
    checkpoints.discard_requests("the batch in which it was requested has failed");
    counters.batches.fall_back();
    counters.batches_total.fall_back();
    seen.fall_back();
    stages[RunningStage::train].loaders.front()->unread();
  }
  // Gradients of the window's earlier batches still count.
  if (!step.adds_gradients || rewound) return;
  // Gradients of an unfinished backward are useless.
  for (auto& [name, value] : unique_parameters(*model)) value.mutable_grad().reset();
  window.done = window.losses = 0;
}

void Run::batch_to_device(Batch& batch, int64_t loader_idx) {
  const HeldBatch as_loaded(batch);  // which a hook may replace
  transfer(batch, loader_idx);
  // After the hooks: what they produce from the batch may be an image too.
  to_memory_format(batch);
}

void Run::transfer(Batch& batch, int64_t loader_idx) {
  strategy->batch_to_device(*model, data.module.get(), batch, loader_idx);
}

void Run::to_memory_format(Batch& batch) const {
  if (options.channels_last) to_channels_last(batch);
}

std::vector<LrScheduler*> Run::lr_schedulers() {
  std::vector<LrScheduler*> all;
  for (const auto& planned : plan.optimizers)
    if (planned.scheduler) all.push_back(planned.scheduler->scheduler.get());
  return all;
}

template <class Value>
void Run::log_value(std::string_view name, const Value& value, const LogOptions& log_options) {
  if (step.muted) return;
  if (options.barebones) return log::warn("trainer.barebones_log", "log() does nothing in a barebones run");
  // A value from an epoch hook does not belong to the last batch's samples: all ranks have the same weight.
  const bool of_epoch = scope == LogScope::train_epoch || scope == LogScope::evaluation_epoch;
  const double weight = log_options.batch_size ? static_cast<double>(*log_options.batch_size)
                        : of_epoch             ? 1
                                               : position.batch_samples;
  const bool of_one_loader = position.loader_count > 1 && position.stage != RunningStage::train &&
                             scope == LogScope::evaluation_step && log_options.add_dataloader_idx;
  if (of_one_loader)
    return logs.log(cat(name, "/dataloader_idx_", position.loader_idx), scope, position.stage, value, weight,
                    log_options);
  logs.log(name, scope, position.stage, value, weight, log_options);
}

void Run::log(std::string_view name, const Tensor& value, const LogOptions& log_options) {
  // A metric is accumulated in one place, wherever its values come from.
  const bool elsewhere = !value.is_cpu() && value.defined() && value.device() != device();
  log_value(name, elsewhere ? value.detach().to(device(), /*non_blocking=*/true) : value, log_options);
}

void Run::log(std::string_view name, double value, const LogOptions& log_options) {
  log_value(name, value, log_options);
}

void Run::print(std::string_view line) {
  if (is_global_zero()) log::info(line);
}

void Run::set_accumulation(int64_t count) {
  if (count < 1) throw ConfigError(cat("[trainer.set_accumulation] the count must be at least 1; got ", count, "."));
  window.target = count;
}

void Run::request_stop(std::string reason) {
  if (!stop_reason) stop_reason = std::move(reason);
}

void Run::check_state_keys() {
  std::set<std::string> keys;
  each_callback(LogScope::forbidden, [&](Callback& callback) {
    const bool stateful = !callback.state().as_map().empty();
    if (stateful && !keys.insert(callback.state_key()).second)
      throw ConfigError(cat("[trainer.callbacks] two callbacks keep state under the key '", callback.state_key(),
                            "'. The key has the options that tell them apart: let one of those differ, or override "
                            "state_key()."));
  });
}

ReplicaContext& Run::replica_context(const LightningModule& replica) {
  const auto found =
      std::find_if(replicas.begin(), replicas.end(), [&](const auto& known) { return known.first.get() == &replica; });
  return *found->second;
}

bool Run::carry_out(NonFiniteDecision decision) {
  switch (decision) {
    case NonFiniteDecision::proceed:
      return true;
    case NonFiniteDecision::skip:
      return false;
    case NonFiniteDecision::stop:
      checkpoints_allowed = false;
      stop_reason = cat("non-finite: ", finite.finding().what);
      return false;
    case NonFiniteDecision::roll_back:
      roll_back(*this);
      return false;
  }
  return true;
}

CheckpointContent Run::collect(bool weights_only) { return collect_checkpoint(*this, weights_only); }

std::function<void(CheckpointContent&)> Run::late_values() {
  return [metrics = published_metrics(*this), values = logs.published_state(),
          logger_states = detail::logger_states(*this)](CheckpointContent& content) {
    content.state["metrics"] = metrics;
    if (content.state.contains("loggers")) content.state["loggers"] = logger_states;
    if (content.state.contains("logs")) content.state["logs"]["values"] = values;
  };
}

void Run::check_ranks() {
  ranks.check_exchanges();
  ranks.check_same_ranks();
}

void Run::published(const CheckpointInfo& info) {
  for (const auto& callback : callbacks) callback->on_checkpoint_published(*this, info);
  for (const auto& logger : active_loggers) logger->after_save_checkpoint(info);
}

void Run::failed(const CheckpointInfo& info, const CheckpointError& error) {
  for (const auto& callback : callbacks) callback->on_checkpoint_failed(*this, info, error);
}

void Run::act_on_checkpoint_requests() {
  if (checkpoints.has_requests()) ranks.settle_same_steps(/*with_all=*/false);
  // A checkpoint comes after the rows of its steps.
  if (checkpoints.has_requests() && !checkpoints.awaits_rows()) rows.settle();
  checkpoints.process_requests();
}

std::optional<double> Run::metric(std::string_view name) {
  if (world_size() > 1) return logs.written(name);
  rows.settle(/*and_act=*/false);
  return logs.newest(name);
}

std::optional<double> Run::monitored_metric(std::string_view name) {
  if (failed_alone) return logs.newest(name);
  rows.settle(/*and_act=*/false);
  return logs.monitored(name, collectives());
}

void Run::flush_step_metrics(RunningStage stage, bool force) {
  bool due = force;
  if (stage == RunningStage::train) {
    due |= is_logging_step();
    if (due) {
      const ScopeGuard guard(*this, LogScope::train_step);
      finite.log_counters();
      logged_step = counters.global_step;
    }
  } else {
    // Ranks may run different numbers of evaluation batches: they synchronize only at the end.
    const bool at_this = options.log_every_n_steps > 0 && validation.batches % options.log_every_n_steps == 0;
    due |= at_this && world_size() == 1;
  }
  rows.advance();
  if (due) rows.begin(stage);
  if (force) rows.settle();
}

}  // namespace fulgur::detail
