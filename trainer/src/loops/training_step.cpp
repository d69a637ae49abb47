// A training step, in order. A test fixes this order; docs/architecture.md describes it. A step waits only for steps
// that lie several steps back (run_ahead.h), and for a metric that a schedule monitors.
#include "loops/training_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "capture/cannot_capture.h"
#include "capture/place_of_operation.h"
#include "checkpointing/nonfinite_actions.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/contracts/step_judge.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/state/let_go.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "loops/micro_batches.h"
#include "run/batch_sizes.h"
#include "run/batch_transfer.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {

namespace {

[[noreturn]] void refuse_monitor(const RunContext& run, const SchedulerConfig& config) {
  throw MonitorError(cat(
      "[trainer.lr_scheduler] ", monitor_not_logged(config.monitor.value_or(""), run),
      " Name one of them (lr_scheduler_monitor in the config), or set strict to false. Is it logged less often than "
      "the schedule steps? lr_scheduler_frequency is the number of epochs or steps between two of its steps."));
}

}  // namespace

void step_schedulers(RunState& run, Services& services, ScheduleInterval interval, int64_t count) {
  for (auto& planned : run.plan.optimizers) {
    if (!planned.scheduler || planned.scheduler->interval != interval || count % planned.scheduler->frequency != 0)
      continue;
    SchedulerConfig& config = *planned.scheduler;
    ScopeGuard scope(run, LogScope::forbidden);
    if (!config.scheduler->wants_metric()) {
      run.model->lr_scheduler_step(*config.scheduler, std::nullopt);
      continue;
    }
    const auto value = services.context.monitored_metric(config.monitor.value_or(""));
    if (value) {
      run.model->lr_scheduler_step(*config.scheduler, *value);
    } else {
      // A run that only measures does not validate, and a trial does not log.
      if (config.strict && !run.is_profile() && !run.components.is_trial) refuse_monitor(services.context, config);
      if (!run.components.is_trial)
        log::warn(
            "lr_scheduler.monitor_missing",
            cat("the learning rate schedule: ", monitor_not_logged(config.monitor.value_or(""), services.context)));
      // A plateau schedule does not step; the schedules it is composed with, such as a warm-up, continue.
      if (!config.scheduler->parts().empty()) run.model->lr_scheduler_step(*config.scheduler, std::nullopt);
    }
  }
}

TrainingStep::TrainingStep(RunState& run, Services& services)
    : run_(run),
      services_(services),
      handle_(run.step.manual || run.handles.empty() ? nullptr : run.handles.front().get()),
      clip_algorithm_(run.options.gradient_clip_algorithm),
      counts_tokens_(services.context.meters().has_token_counts()),
      run_ahead_(run.device()) {
  GradientNorm::note_also_of_values(*run.model, services.finite.judges_gradients());
  if (run.options.debug) debug_.emplace(run);
  if (run.options.auto_micro_batch && handle_) micro_batches_.emplace(run, services);
}

TrainingStep::~TrainingStep() = default;

void TrainingStep::set_prefetcher(DevicePrefetcher* prefetcher) {
  prefetcher_ = prefetcher;
  if (captured_) captured_->set_prefetcher(prefetcher);
}

void TrainingStep::before_evaluation() {
  if (captured_) captured_->before_evaluation();
}

bool TrainingStep::run_batch(int64_t batch_idx, const CapturedStep::ExpectedEnd& end) {
  const auto timer = run_.actions.time("training_batch");
  begin_batch(batch_idx);
  Batch& batch = run_.position.batch;
  run_.position.doing = "on_train_batch_start";
  run_.each_callback(LogScope::train_step, {Hook::on_train_batch_start, "on_train_batch_start"},
                     [&](Callback& c) { c.on_train_batch_start(services_.context, batch, batch_idx); });
  ScopeGuard scope(run_, LogScope::train_step);
  const bool skip_rest = run_.model->on_train_batch_start(batch, batch_idx) == -1;
  if (run_.options.capture && !std::exchange(capturing_decided_, true)) start_capturing();
  if (!skip_rest) train_on(batch, batch_idx, end);
  run_.position.in_batch = false;
  // Done before the loader creates the next batch, which it may write into the same memory.
  let_go(batch);
  return !skip_rest;
}

void TrainingStep::begin_batch(int64_t batch_idx) {
  Progress& progress = run_.counters;
  run_.position.batch_idx = batch_idx;
  Batch& batch = run_.position.batch;
  run_.position.in_batch = true;
  run_.position.doing = "the transfer of the batch";
  // What a module or a graph does with gradients is not seen.
  run_.step.progress = run_.step.manual || captured_ ? StepProgress::backward : StepProgress::none;
  run_.step.global_step_before = progress.global_step;
  run_.position.filtered = {.step = progress.global_step + 1, .epoch = progress.epoch + 1};
  services_.logs.start_batch();
  services_.seen.start_batch();
  progress.batches.ready = progress.batches.started = batch_idx + 1;
  ++progress.batches_total.ready;

  {
    const auto timer = run_.actions.time("batch_to_device");
    const HeldBatch as_loaded(batch);  // a hook may replace the batch
    shaping_.shape(run_, services_.context, batch);
    transfer_batch(run_, batch, 0);
    if (!captured_ || !captured_->reads(batch)) to_memory_format(run_, batch);
  }
  if (debug_) debug_->check_batch(batch);
  run_.position.batch_samples = static_cast<double>(batch.size());
}

void TrainingStep::train_on(const Batch& batch, int64_t batch_idx, const CapturedStep::ExpectedEnd& end) {
  Progress& progress = run_.counters;
  ++progress.batches_total.started;
  run_.position.doing = "a wait for earlier steps";
  {
    const auto timer = run_.actions.time("wait_for_device");
    run_ahead_.begin_step();
  }
  StepOutput output;
  try {
    output = run_.step.manual ? manual_step(batch, batch_idx) : automatic_step(batch, batch_idx, end);
  } catch (...) {
    // A batch that fails after its step counts. One rank of several cannot save then, nor exchange counts.
    if (run_.step.progress == StepProgress::done && run_.world_size() == 1) count_samples(batch);
    throw;
  }
  run_ahead_.end_step();
  if (debug_) debug_->check_batch_unwritten(batch);
  if (!end.batches_in_epoch || batch_idx + 1 < *end.batches_in_epoch) read_ahead();
  count_samples(batch);
  ++progress.batches_total.processed;
  progress.batches.processed = batch_idx + 1;
  run_.position.doing = "on_train_batch_end";
  run_.each_callback(LogScope::train_step, {Hook::on_train_batch_end, "on_train_batch_end"},
                     [&](Callback& c) { c.on_train_batch_end(services_.context, output, batch, batch_idx); });
  run_.model->on_train_batch_end(output, batch, batch_idx);
  ++progress.batches_total.completed;
  progress.batches.completed = batch_idx + 1;
}

void TrainingStep::count_samples(const Batch& batch) {
  std::optional<int64_t> tokens;
  if (counts_tokens_) {
    tokens = run_.model->num_tokens(batch);
    counts_tokens_ = tokens.has_value();
    run_.tokens_unknown = !tokens;
  }
  services_.seen.add(std::llround(run_.position.batch_samples), tokens.value_or(0));
}

void TrainingStep::read_ahead() {
  if (!prefetcher_) return;
  run_.position.reading = run_.position.batch_idx + 1;
  const DataWait wait(run_.times);
  const auto timer = run_.actions.time("next_batch");
  prefetcher_->read_ahead();
  run_.position.reading.reset();
}

StepOutput TrainingStep::automatic_step(const Batch& batch, int64_t batch_idx, const CapturedStep::ExpectedEnd& end) {
  // A window begins here; its real length is known now if the loader's length is.
  if (run_.window.done == 0) {
    begin_window(run_, end.batches_in_epoch);
    run_.window.length = run_.window.target;
    if (end.batches_in_epoch) run_.window.length = std::min(run_.window.target, *end.batches_in_epoch - batch_idx);
  }
  if (handle_ && handle_->optimizer().needs_closure()) return closure_step(batch, batch_idx);
  if (!captured_) return eager_step(batch, batch_idx);
  services_.checkpoints.before_writes();  // the batch includes the optimizer's step
  std::optional<StepOutput> output;
  {
    const auto timer = run_.actions.time("captured_step");
    output = captured_->step(batch, batch_idx, end);
  }
  if (output) {
    ++run_.window.losses;
    if (++run_.window.done < run_.window.length) return *output;
    handle_->count_step();
    count_step();
    return *output;
  }
  const std::shared_ptr<void> before_recording = captured_->eager_step(batch);
  Batch in_format = batch;
  to_memory_format(run_, in_format);
  return eager_step(in_format, batch_idx);
}

StepOutput TrainingStep::eager_step(const Batch& batch, int64_t batch_idx) {
  const bool last_of_window = run_.window.done + 1 == run_.window.length;
  left_out_ = false;
  StepOutput output = forward_backward(batch, batch_idx, last_of_window);
  if (left_out_) {
    // The window's gradients belong to discarded weights, or to a run that is ending.
    if (handle_) handle_->optimizer().zero_grad();
    run_.window.restart();
    return output;
  }
  ++run_.window.done;
  // The backwards of the window before have exchanged nothing.
  if (last_of_window && handle_ && !output.loss.defined() && run_.window.losses > 0)
    run_.strategy->sync_gradients(handle_->optimizer());
  if (last_of_window) end_window();
  return output;
}

StepOutput TrainingStep::manual_step(const Batch& batch, int64_t batch_idx) {
  StepOutput output;
  {
    const StepState::Allowed actions(run_.step, *this);
    run_.position.doing = "training_step";
    const auto timer = run_.actions.time("training_step");
    services_.finite.begin_manual_batch();
    run_.strategy->before_forward(*run_.model, GradSync::now);
    const auto guard = run_.strategy->precision().forward_guard();
    output = run_.model->training_step(batch, batch_idx);
  }
  carry_out(run_, services_, services_.finite.end_manual_batch(run_.step.progress == StepProgress::done));
  run_.strategy->precision().update();
  output.extra = output.extra.detach();
  if (output.loss.defined()) output.loss = output.loss.variable_data();
  // This is one training step, no matter how many optimizers stepped.
  if (run_.step.progress == StepProgress::done || run_.handles.empty()) count_step();
  services_.rank_checks.check_same_steps();
  return output;
}

void TrainingStep::manual_backward(const Tensor& loss, const BackwardOptions& options) {
  refuse_integer_loss(loss);
  if (debug_) debug_->check_loss(loss);
  if (!carry_out(run_, services_, services_.finite.check_loss(loss))) return;
  GradientNorm::forget(*run_.model);
  const Tensor scaled = run_.strategy->precision().scale(services_.finite.shown_in_gradients(loss, options.inputs));
  backward(scaled, run_.step.manual_sync ? GradSync::now : GradSync::deferred, options);
}

void TrainingStep::step_optimizer(Optimizer& optimizer, const Closure& closure) {
  if (optimizer.needs_closure() && !closure)
    throw Error(
        cat("[trainer.optimizer_step] ", optimizer.name(), " evaluates its loss several times; call step(closure)."));
  // In automatic optimization this was done earlier.
  if (run_.step.manual) {
    services_.checkpoints.before_writes();
    unscale(optimizer);
  }
  if (run_.step.manual &&
      !carry_out(run_, services_,
                 services_.finite.check_gradients(optimizer, GradientNorm::take(*run_.model, optimizer)))) {
    run_.step.progress = StepProgress::done;  // a step that was skipped is a step of the run
    return;
  }
  apply_step(optimizer, optimizer.needs_closure() ? closure : Closure{});
}

void TrainingStep::apply_step(Optimizer& optimizer, const Closure& closure) {
  StepProgress& progress = run_.step.progress;
  Closure watched;
  if (closure) {
    // The weights move after the first evaluation.
    watched = [&] {
      Tensor loss = closure();
      progress = std::max(progress, StepProgress::under_way);
      return loss;
    };
  } else {
    progress = std::max(progress, StepProgress::under_way);
  }
  {
    const auto timer = run_.actions.time("optimizer_step");
    run_.strategy->optimizer_step(optimizer, watched, services_.finite.found_inf());
  }
  progress = StepProgress::done;
  if (debug_) debug_->check_parameters();
}

void TrainingStep::backward(const Tensor& loss, GradSync sync, const BackwardOptions& options) {
  LightningModule& module = *run_.model;
  run_.each_callback(LogScope::train_step, {Hook::on_before_backward, "on_before_backward"},
                     [&](Callback& c) { c.on_before_backward(services_.context, loss); });
  module.on_before_backward(loss);
  {
    const auto timer = run_.actions.time("backward");
    run_.strategy->backward(module, loss, sync, options);
  }
  run_.each_callback(LogScope::train_step, {Hook::on_after_backward, "on_after_backward"},
                     [&](Callback& c) { c.on_after_backward(services_.context); });
  module.on_after_backward();
  if (debug_) debug_->check_gradients();
}

void TrainingStep::unscale(Optimizer& optimizer) {
  run_.strategy->precision().unscale(optimizer);
  run_.each_callback(LogScope::train_step, {Hook::on_before_optimizer_step, "on_before_optimizer_step"},
                     [&](Callback& c) { c.on_before_optimizer_step(services_.context, optimizer); });
  run_.model->on_before_optimizer_step(optimizer);
}

StepOutput TrainingStep::forward_backward(const Batch& batch, int64_t batch_idx, bool last_of_window) {
  if (micro_batches_) return micro_batched(batch, batch_idx, last_of_window);
  LightningModule& module = *run_.model;
  StepOutput output;
  run_.position.doing = "training_step";
  if (run_.window.done == 0) services_.finite.begin_window();
  std::optional<nn::LoraWeights> adapted;  // until backward, which may compute parts of the forward again
  {
    const auto timer = run_.actions.time("training_step");
    const GradSync sync = last_of_window ? GradSync::now : GradSync::deferred;
    run_.strategy->before_forward(module, sync);
    adapted.emplace(run_.lora_layers);  // weights that are divided can be read from here on
    if (std::optional<StepOutput> computed = compute_by_strategy(batch, sync)) {
      take_computed(*computed);
      return *std::move(computed);
    }
    const std::vector<MicroBatch> parts = run_.strategy->split(module, batch, RunningStage::train);
    const auto guard = parts.empty() ? run_.strategy->precision().forward_guard() : nullptr;
    output = parts.empty() ? module.training_step(batch, batch_idx) : training_step_of_parts(run_, parts, batch_idx);
  }
  if (!output.extra.empty()) output.extra = output.extra.detach();
  if (!output.loss.defined()) {
    run_.strategy->skip_backward(module);
    if (run_.world_size() > 1)
      throw DistributedError(
          "[trainer.training_step] training_step returned no loss; with several ranks every rank must return one.");
    if (handle_)
      log::warn("trainer.no_loss", cat("training_step returned no loss (", run_.describe_position(),
                                       "): the step skips this batch. Return the loss, unless this is intended"));
    return output;
  }
  require_scalar_loss(output.loss);
  if (!output.loss.requires_grad()) {
    run_.strategy->skip_backward(module);
    if (!handle_) return output;
    refuse_loss_without_graph(output.loss, *run_.model);
  }
  if (!accepts(output.loss)) {
    run_.strategy->skip_backward(module);
    return output;
  }
  for (const RegisteredJudge& judge : run_.judges)
    if (run_.is_due(judge)) judge.judge->see_loss(services_.context, output.loss.detach());
  GradientNorm::forget(module);
  backward_of(output.loss, 1, last_of_window ? GradSync::now : GradSync::deferred);
  ++run_.window.losses;
  // Free the graph now, not when callbacks, or a user who keeps losses, release it. This happens in place, since a
  // second tensor would cost more than everything else after the backward.
  output.loss.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
  return output;
}

std::optional<StepOutput> TrainingStep::compute_by_strategy(const Batch& batch, GradSync sync) {
  const double samples = run_.position.batch_samples;
  const StepServices services{.part =
                                  [&](int64_t of_part, const std::function<void()>& work) {
                                    run_.step.progress = std::max(run_.step.progress, StepProgress::backward);
                                    run_.position.batch_samples = static_cast<double>(of_part);
                                    const auto guard = run_.strategy->precision().forward_guard();
                                    work();
                                    run_.position.batch_samples = samples;
                                  },
                              .scaled =
                                  [&](const Tensor& loss, double share) {
                                    require_scalar_loss(loss);
                                    if (!loss.requires_grad()) refuse_loss_without_graph(loss, *run_.model);
                                    Tensor scaled = services_.finite.shown_unchecked(loss);
                                    const double factor = share / static_cast<double>(run_.window.length);
                                    if (factor != 1) scaled = scaled * factor;
                                    return run_.strategy->precision().scale(scaled);
                                  },
                              .sync = sync};
  return run_.strategy->compute_step(*run_.model, batch, services);
}

void TrainingStep::take_computed(StepOutput& output) {
  LightningModule& module = *run_.model;
  GradientNorm::forget(module);
  if (debug_) debug_->check_loss(output.loss);
  if (!carry_out(run_, services_, services_.finite.check_loss(output.loss))) {
    left_out_ = true;
    return;
  }
  for (const RegisteredJudge& judge : run_.judges)
    if (run_.is_due(judge)) judge.judge->see_loss(services_.context, output.loss);
  run_.each_callback(LogScope::train_step, {Hook::on_before_backward, "on_before_backward"},
                     [&](Callback& c) { c.on_before_backward(services_.context, output.loss); });
  module.on_before_backward(output.loss);
  run_.each_callback(LogScope::train_step, {Hook::on_after_backward, "on_after_backward"},
                     [&](Callback& c) { c.on_after_backward(services_.context); });
  module.on_after_backward();
  if (debug_) debug_->check_gradients();
  ++run_.window.losses;
}

bool TrainingStep::accepts(Tensor& loss) {
  leaves_.check(loss);
  if (debug_) debug_->check_loss(loss);
  if (carry_out(run_, services_, services_.finite.check_loss(loss))) return true;
  left_out_ = true;
  loss = loss.variable_data();
  return false;
}

void TrainingStep::backward_of(const Tensor& loss, double share, GradSync sync) {
  run_.step.progress = std::max(run_.step.progress, StepProgress::backward);
  Tensor scaled = services_.finite.shown_in_gradients(loss);
  if (share != 1) scaled = scaled * share;
  if (run_.window.length > 1) scaled = scaled / static_cast<double>(run_.window.length);
  scaled = run_.strategy->precision().scale(scaled);
  run_.position.doing = "backward";
  backward(scaled, sync, plain_backward_);
}

StepOutput TrainingStep::micro_batched(const Batch& batch, int64_t batch_idx, bool last_of_window) {
  if (run_.window.done == 0) services_.finite.begin_window();
  // Nothing is exchanged in an attempt, which may fail on one rank alone.
  run_.strategy->before_forward(*run_.model, GradSync::deferred);
  GradientNorm::forget(*run_.model);
  StepOutput output = micro_batches_->run(
      batch, [&](const Batch& part, double share, bool& stop) { return micro_batch(part, batch_idx, share, stop); });
  if (left_out_) return output;
  for (const RegisteredJudge& judge : run_.judges)
    if (run_.is_due(judge)) judge.judge->see_loss(services_.context, output.loss);
  ++run_.window.losses;
  run_.position.doing = "the exchange of gradients";
  if (last_of_window && run_.world_size() > 1) run_.strategy->sync_gradients(handle_->optimizer());
  return output;
}

StepOutput TrainingStep::micro_batch(const Batch& part, int64_t batch_idx, double share, bool& stop) {
  StepOutput output;
  run_.position.doing = "training_step";
  const nn::LoraWeights adapted(run_.lora_layers);
  {
    const auto timer = run_.actions.time("training_step");
    const auto guard = run_.strategy->precision().forward_guard();
    output = run_.model->training_step(part, batch_idx);
  }
  if (!output.loss.defined())
    throw Error(
        "[trainer.auto_micro_batch] training_step must return a loss for each part of a batch; it returned none. "
        "Return "
        "the loss, or set auto_micro_batch to false.");
  require_scalar_loss(output.loss);
  if (!output.loss.requires_grad()) refuse_loss_without_graph(output.loss, *run_.model);
  output.extra = output.extra.detach();
  if (!accepts(output.loss)) {
    stop = true;
    return output;
  }
  backward_of(output.loss, share, GradSync::deferred);
  output.loss = output.loss.detach().reshape({});
  return output;
}

namespace {
/// Ends an optimizer's step from within its closure.
struct LeftOut {};
}  // namespace

StepOutput TrainingStep::closure_step(const Batch& batch, int64_t batch_idx) {
  StepOutput first;
  bool evaluated = false;
  const Closure closure = [&] {
    // The optimizer evaluates repeatedly, but values that the user logs count once.
    std::optional<ScopeGuard> muted;
    if (evaluated) {
      muted.emplace(run_, LogScope::muted);
      handle_->zero_grad();
    }
    StepOutput output = forward_backward(batch, batch_idx, /*last_of_window=*/true);
    if (left_out_) throw LeftOut();
    if (!output.loss.defined())
      throw Error(cat("[trainer.training_step] ", handle_->optimizer().name(),
                      " needs a loss each time it evaluates the step; training_step returned none."));
    prepare_gradients();
    if (!makes_step_) throw LeftOut();
    if (!evaluated) first = output;
    evaluated = true;
    // The optimizer chooses its step length and termination by the loss, which must be the same on all ranks.
    return run_.collectives().all_reduce(output.loss, ReduceOp::mean);
  };
  left_out_ = false;
  services_.checkpoints.before_writes();
  try {
    step_and_zero(closure);
  } catch (const LeftOut&) {
    // The run ends with the weights of the last finite evaluation.
    if (run_.step.progress == StepProgress::under_way) run_.step.progress = StepProgress::done;
    handle_->zero_grad();
  }
  return first;
}

void TrainingStep::prepare_gradients() {
  Optimizer& optimizer = handle_->optimizer();
  run_.position.doing = "optimizer_step";
  unscale(optimizer);
  const bool clips_by_norm = clip_algorithm_ == ClipAlgorithm::norm && run_.options.gradient_clip_val.value_or(0) > 0;
  const bool logs_norm = run_.options.log_grad_norm;
  Tensor norm = logs_norm && !clips_by_norm ? grad_norm(optimizer) : Tensor();
  {
    const auto timer = run_.actions.time("configure_gradient_clipping");
    run_.model->configure_gradient_clipping(optimizer, run_.options.gradient_clip_val, clip_algorithm_);
  }
  if (Tensor clipped = GradientNorm::take(*run_.model, optimizer); clipped.defined()) norm = std::move(clipped);
  if (logs_norm) {
    if (!norm.defined()) norm = grad_norm(optimizer);
    services_.context.log("grad_norm", norm, {});
  }
  // Callbacks judge each step, also one that is not made for another reason.
  const NonFiniteDecision judged = judge_step();
  const int64_t rollbacks = services_.finite.rollbacks();
  const auto has_rolled_back = [&] { return services_.finite.rollbacks() != rollbacks; };
  makes_step_ = carry_out(run_, services_, services_.finite.check_gradients(optimizer, norm));
  if (makes_step_ && judged != NonFiniteDecision::proceed) {
    if (judged == NonFiniteDecision::skip) services_.finite.restore_buffers();
    makes_step_ = carry_out(run_, services_, judged);
    if (!makes_step_ && !has_rolled_back()) services_.finite.count_judged_skip();
  }
  rolled_back_ = has_rolled_back();
}

NonFiniteDecision TrainingStep::judge_step() {
  NonFiniteDecision decision = NonFiniteDecision::proceed;
  for (const RegisteredJudge& registered : run_.judges) {
    if (!run_.is_due(registered)) continue;
    StepJudge* const judge = registered.judge;
    const StepVerdict verdict = judge->judge_step(services_.context);
    if (verdict == StepVerdict::good) services_.finite.note_progress();
    if (verdict == StepVerdict::skip && decision == NonFiniteDecision::proceed) decision = NonFiniteDecision::skip;
    if (verdict == StepVerdict::roll_back) decision = services_.finite.roll_back_for(judge->finding());
  }
  return decision;
}

void TrainingStep::step_and_zero(const Closure& closure) {
  if (closure) makes_step_ = true;  // the gradients are computed inside it
  LightningModule& module = *run_.model;
  Optimizer& optimizer = handle_->optimizer();
  if (makes_step_) {
    const StepState::Allowed actions(run_.step, *this);
    module.optimizer_step(run_.counters.epoch, run_.position.batch_idx, *handle_, closure);
  } else if (services_.finite.ranks_capture()) {
    handle_->count_step();  // as a rank does that skips it in a captured step
  }
  run_.strategy->precision().update();
  count_step();
  run_.each_callback(LogScope::train_step, {Hook::on_before_zero_grad, "on_before_zero_grad"},
                     [&](Callback& c) { c.on_before_zero_grad(services_.context, optimizer); });
  module.on_before_zero_grad(optimizer);
  const auto timer = run_.actions.time("optimizer_zero_grad");
  module.optimizer_zero_grad(run_.counters.epoch, run_.position.batch_idx, optimizer);
}

void TrainingStep::count_step() {
  run_.step.progress = StepProgress::done;
  const int64_t step = ++run_.counters.global_step;
  run_.collectives().set_steps_done(step);
  run_.strategy->after_step(*run_.model, step);
  // With manual optimization the module steps them.
  if (handle_) step_schedulers(run_, services_, ScheduleInterval::step, step);
  run_.window.restart();
}

void TrainingStep::start_capturing() {
  // Also if this rank refuses: others may not. With other policies all do.
  const OnNonFinite policy = run_.options.on_nonfinite;
  if (run_.world_size() > 1 && run_.device().is_cpu() && policy != OnNonFinite::stop && policy != OnNonFinite::rollback)
    services_.finite.begin_capture_by_ranks();
  std::optional<std::string> reason =
      ComponentAccess::overridden(*run_.model).exact
          ? std::nullopt
          : std::optional<std::string>("the module's class is not known; pass it to fit() with its own type");
  std::unique_ptr<GraphCapture> graph = reason ? nullptr : run_.strategy->make_graph_capture();
  if (!reason && !graph) reason = why_no_recorder(run_);
  if (!reason) reason = cannot_capture(run_);
  if (!reason && graph->compares_recordings()) reason = cannot_keep_bits(run_);
  if (graph) {
    graph->set_place([this] { return place_of_operation(run_); });
    graph->set_state([this] { return captured_state(*run_.model); });
  }
  if (reason) {
    run_.captured.refused = *reason;
    return log::warn("trainer.not_captured",
                     cat("capture: the steps are not captured: ", *reason, ". Training continues with eager steps"));
  }
  captured_ = std::make_unique<CapturedStep>(run_, services_, std::move(graph),
                                             [this](const Batch& batch, int64_t batch_idx, bool last_of_window) {
                                               StepOutput output = forward_backward(batch, batch_idx, last_of_window);
                                               if (!output.loss.defined() || !last_of_window) return output;
                                               Optimizer& optimizer = handle_->optimizer();
                                               prepare_gradients();
                                               apply_step(optimizer, {});
                                               run_.strategy->precision().update();
                                               optimizer.zero_grad();
                                               return output;
                                             });
  captured_->set_prefetcher(prefetcher_);
}

void TrainingStep::end_window() {
  // Batches without a loss do not count in the mean; a window without any is not a step.
  const int64_t losses = run_.window.losses;
  if (losses == 0 && handle_) {
    run_.window.restart();
    return;
  }
  if (!handle_) {
    // Without an optimizer, the training step is all there is to do.
    for (auto& [name, value] : unique_parameters(*run_.model)) value.mutable_grad().reset();
    return count_step();
  }
  // Each loss was divided by the expected length; the real one is known only now.
  if (losses != run_.window.length) {
    at::NoGradGuard no_grad;
    // These are the module's gradients: an optimizer with master weights has none yet.
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : handle_->parameters())
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    if (handle_->optimizer().gradients_are_shards()) gradients = handle_->optimizer().gradients();
    if (!gradients.empty())
      at::_foreach_mul_(gradients, static_cast<double>(run_.window.length) / static_cast<double>(losses));
  }
  services_.checkpoints.before_writes();
  prepare_gradients();
  if (rolled_back_) {
    // The window's gradients belong to discarded weights.
    run_.strategy->precision().abandon_step();
    handle_->optimizer().zero_grad();
    return run_.window.restart();
  }
  step_and_zero({});
}

void TrainingStep::close_window() {
  if (run_.window.done == 0) return;
  ScopeGuard scope(run_, LogScope::train_step);
  // After a resume there may have been no batch.
  run_.position.filtered = {.step = run_.counters.global_step + 1, .epoch = run_.counters.epoch + 1};
  // No batch of the window has exchanged gradients: the last one was not expected to be the last.
  if (handle_ && run_.window.losses > 0) run_.strategy->sync_gradients(handle_->optimizer());
  end_window();
}

}  // namespace fulgur::detail
