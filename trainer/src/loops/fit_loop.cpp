#include "loops/fit_loop.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "checkpointing/logger_states.h"
#include "checkpointing/nonfinite_actions.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/cumulative_stats.h"
#include "loops/evaluation_loop.h"
#include "loops/monitor_check.h"
#include "loops/rewind.h"
#include "loops/save_for_signal.h"
#include "loops/training_step.h"
#include "loops/validation_schedule.h"
#include "process/signals.h"
#include "run/batch_sizes.h"
#include "run/callback_states.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {

namespace {

class FitLoop {
 public:
  FitLoop(RunState& run, Services& services)
      : run_(run),
        services_(services),
        monitors_(run, services),
        step_(run, services),
        schedule_(run, services.context) {}

  void train(bool resumed) {
    run_.collectives().set_steps_done(run_.counters.global_step);
    callbacks(LogScope::train_epoch, "on_train_start", &Callback::on_train_start);
    run_.position.during("on_train_start of the module",
                         [&] { module_hook(LogScope::train_epoch, &LightningModule::on_train_start); });
    warn_of_eval_mode();
    services_.checkpoints.start_training();
    services_.checkpoints.publish_resumed();
    schedule_.start();
    // The run was interrupted before or inside a validation.
    if (resumed && run_.validation.pending && run_.validation.runs) {
      validate();
      if (!epoch_is_over()) services_.checkpoints.act_on_requests();
    }
    bool continue_epoch = resumed && run_.counters.in_epoch();
    if (continue_epoch && epoch_is_over()) {
      close_epoch_of_checkpoint();
      continue_epoch = false;
    }
    while (services_.consensus.settle(), !stop_at_limit()) {
      reload_loaders();
      train_epoch(continue_epoch);
      continue_epoch = false;
      if (stopped_in_epoch_) break;
    }
    services_.rows.settle();
    services_.seen.settle();
    if (run_.updates_batch_norm && nn::CumulativeStats::has_any(*run_.model)) save_what_was_trained();
    services_.checkpoints.before_writes();
    warn_of_filters(resumed);
    callbacks(LogScope::forbidden, "on_train_end", &Callback::on_train_end);
    if (run_.ended_in_train_end) throw Interrupted(*run_.ended_in_train_end);
    module_hook(LogScope::forbidden, &LightningModule::on_train_end);
    services_.checkpoints.act_on_requests();
  }

 private:
  // The pass over the data that follows must not be able to lose anything. A callback may save this step as well, under
  // its usual name.
  void save_what_was_trained() {
    services_.checkpoints.wait_for_save();  // it may fail
    services_.checkpoints.act_on_requests();
    if (!run_.checkpoints_allowed || run_.counters.global_step == 0 || services_.checkpoints.is_saved()) return;
    CheckpointRequest request =
        checkpoint_of_now(services_.context, "the statistics of batch norms are recomputed next");
    request.name += "-trained";
    services_.context.request_checkpoint(std::move(request));
    services_.checkpoints.act_on_requests();
    services_.checkpoints.wait_for_save();
  }

  // Modes are the user's choice: a frozen layer stays in its mode.
  void warn_of_eval_mode() const {
    std::vector<std::string> names;
    for (const auto& item : run_.model->named_modules("", /*include_self=*/true))
      if (!item.value()->is_training()) names.push_back(item.key().empty() ? "the module itself" : item.key());
    if (names.empty()) return;
    log::warn("trainer.eval_mode", cat("in eval mode at the start of training: ", join_some(names, 5),
                                       ". Call train() on layers that should use dropout and batch statistics"));
  }

  // A filter that selects nothing of the run is probably a mistake. What an earlier process of the run has called is
  // not known, except that positions after the end have never come.
  void warn_of_filters(bool resumed) const {
    if (run_.fast_dev_run() || run_.components.is_trial || run_.counters.global_step == 0) return;
    const CallbackFilter::Position last{.step = run_.counters.global_step, .epoch = run_.counters.epochs.started};
    std::vector<std::string> never;
    for (const auto& callback : run_.callbacks) {
      const CallbackFilter& filter = callback->filter();
      if (!filter.is_set() || run_.let_through.contains(callback.get())) continue;
      if (!resumed || filter.begins_after(last)) never.push_back(cat(callback->state_key(), " (", filter.text(), ")"));
    }
    if (!never.empty())
      log::warn("trainer.never_called",
                cat("never called, since the fit of ", counted(last.step, "step"), " in ", counted(last.epoch, "epoch"),
                    " has no step or epoch that the filter selects: ", join(never),
                    ". A validation and the end of an epoch belong to the last step before them"));
  }

  // Records the limit that is reached, if any. True if training ends here. A signal is thrown as an exception.
  bool stop_at_limit() {
    if (const auto signal = signal_due()) throw Interrupted(*signal);
    if (services_.finite.stopped()) return true;
    if (run_.options.step_limit >= 0 && run_.counters.global_step >= run_.options.step_limit) {
      services_.rank_checks.settle_same_steps(/*with_all=*/false);
      return record_limit("max_steps");
    }
    if (run_.options.epoch_limit && run_.counters.epochs.completed >= *run_.options.epoch_limit)
      return record_limit("max_epochs");
    if (run_.stages[RunningStage::train].batches.front() == 0) return record_limit("limit_train_batches: 0");
    request_stop_at_max_time();
    if (services_.consensus.stop_agreed()) {
      if (run_.may_stop()) return true;
      if (!announced_that_it_continues_)
        run_.print(cat("a stop was requested (", *run_.stop_reason,
                       "), but min_epochs or min_steps is not reached: training continues"));
      announced_that_it_continues_ = true;
    }
    // Only this process ends here, as after a signal, and not the run.
    if (is_at_stop_after()) throw Interrupted(Interrupted::kStopAfter);
    return false;
  }

  // The run may resume with other ranks, whose batches need not end where the ones of an open window do: with
  // global_batch_size, a signal waits for the end of the window.
  std::optional<int> signal_due() const {
    if (run_.options.global_batch_size && run_.window.done > 0) return std::nullopt;
    return services_.consensus.signal();
  }

  bool is_at_stop_after() const {
    const std::optional<Interval>& after = run_.options.stop_after;
    if (!after) return false;
    const bool epochs = after->unit == Interval::Unit::epochs;
    return static_cast<double>(epochs ? run_.counters.epochs.completed : run_.counters.global_step) >= after->value;
  }

  void request_stop_at_max_time() {
    if (run_.options.max_time && services_.context.fit_time_s() >= run_.options.max_time->value)
      run_.request_stop("max_time");
  }

  bool stop_follows() const { return services_.consensus.stop_agreed() && run_.may_stop(); }

  // A stop was requested and training may end with this batch. No validation follows a signal or NaN.
  bool ends_after_validation() const {
    return stop_follows() && !services_.consensus.signal() && !services_.finite.stopped();
  }

  bool record_limit(const char* limit) {
    // A limit is reported as the reason even if a stop held up by min_epochs is pending.
    run_.stop_reason = run_.stop_reason && run_.may_stop() ? *run_.stop_reason : std::string(limit);
    return true;
  }

  bool epoch_is_over() {
    const Progress& progress = run_.counters;
    const auto batches = run_.stages[RunningStage::train].batches.front();
    // If the data has no length, the last validation of the epoch was in progress.
    return progress.at_epoch_end() || (batches && progress.batches.completed >= *batches);
  }

  // No batch is left of the checkpoint's epoch, because of a lower limit, less data or another number of ranks. Its
  // window and its validation are still to be completed.
  void close_epoch_of_checkpoint() {
    run_.position.stage = RunningStage::train;
    schedule_.begin_epoch(run_.stages[RunningStage::train].batches.front());
    close_window();
    services_.rows.end_batch(RunningStage::train, false);
    // An epoch that was at its end had its validation, unless on_train_batch_start skipped the rest.
    const bool was_at_end = run_.counters.at_epoch_end();
    // The loader reports what has changed, although none of its batches is trained.
    const StageLoaders& train = run_.stages[RunningStage::train];
    if (!was_at_end && train.sized.front()) train.loaders.front()->start_epoch(run_.counters.epoch);
    const bool validated = was_at_end || run_.validation.ended_at == run_.counters.batches_total.completed;
    if (!validated && schedule_.take_due(run_.counters.batches.completed - 1, true)) validate();
    end_epoch();
  }

  void reload_loaders() {
    const int64_t every = run_.options.reload_dataloaders_every_n_epochs;
    if (every == 0 || run_.counters.epoch == 0 || run_.counters.epoch % every != 0 || run_.counters.in_epoch()) return;
    run_.reload_loaders(RunningStage::train);
    if (run_.validation.runs) run_.reload_loaders(RunningStage::validate);
  }

  void callbacks(LogScope scope, const char* name, void (Callback::*hook)(RunContext&)) {
    run_.each_callback(scope, name, [&](Callback& c) { (c.*hook)(services_.context); });
  }

  void module_hook(LogScope scope, void (LightningModule::*hook)()) {
    ScopeGuard guard(run_, scope);
    ((*run_.model).*hook)();
  }

  // The validation of an interval, or the last one before a stop.
  bool take_validation(int64_t batch_idx, bool last_batch) {
    return schedule_.take_due(batch_idx, last_batch) || (ends_after_validation() && schedule_.may_run());
  }

  void validate() {
    services_.rows.settle();
    run_.validation.pending = true;
    run_.validation.batches_before = run_.validation.batches;
    run_.loggers_before = logger_states(run_);
    services_.checkpoints.before_writes();  // callbacks may evaluate other weights
    step_.before_evaluation();
    // Not inside an accumulation window, whose gradients are needed.
    if (run_.window.done == 0) run_.model->on_validation_model_zero_grad();
    const bool first = !run_.validation.logged;
    // A signal may also end the run here; the Trainer then saves.
    CallbackStates before(run_.callbacks);
    const uint64_t first_ticket = services_.checkpoints.next_ticket();
    const int64_t validations = run_.counters.validations;
    try {
      validate_in_fit(run_, services_);
    } catch (const Interrupted&) {
      // The Trainer saves next. No weights are exchanged here: such a validation is completed.
      fall_back(validations, first_ticket);
      before.restore();
      throw;
    } catch (...) {
      fall_back(validations, first_ticket);
      // The others first undo what they did for the validation, in on_exception: their states may hold the weights.
      before.restore(/*that_write_checkpoints=*/true);
      run_.validation.callbacks_before = std::move(before);
      throw;
    }
    if (first) refuse_misspelt_monitors(run_, services_);
    run_.validation.pending = false;
    run_.validation.batches_before.reset();
    run_.loggers_before.reset();
    run_.validation.ended_at = run_.counters.batches_total.completed;
  }

  // From a validation that has not ended.
  void fall_back(int64_t validations, uint64_t first_ticket) {
    run_.counters.validations = validations;
    services_.checkpoints.discard_requests("the validation in which it was requested has failed", first_ticket);
  }

  void train_epoch(bool continue_epoch) {
    Progress& progress = run_.counters;
    if (!continue_epoch) begin_batch_size_of_epoch(run_);
    Loader& loader = *run_.stages[RunningStage::train].loaders.front();
    const std::optional<int64_t> batches = run_.stages[RunningStage::train].batches.front();
    begin_epoch(loader, batches, continue_epoch);
    int64_t batch_idx = progress.batches.completed;
    const int64_t steps_before = progress.global_step;
    bool at_end = false, skipped = false;
    while (!batches || batch_idx < *batches) {
      // A failure in the first batch of an epoch returns the run to before the epoch's hooks, which a resume repeats.
      if (run_.remembers_batches && (batch_idx > 0 || continue_epoch)) take_rewind_point(run_, services_);
      if (!next_batch(loader, batch_idx)) {
        at_end = true;
        break;
      }
      const bool last_batch = batches && batch_idx + 1 == *batches;
      try {
        skipped = !step_.run_batch(batch_idx, {batches, schedule_.batches_to_next(batch_idx)});
      } catch (...) {
        note_missed_validation(batch_idx, last_batch);
        throw;
      }
      if (skipped) break;
      after_batch(batch_idx++, last_batch);
      run_.actions.step_done();
      // What follows the last batch happens at the epoch's end, when the epoch counts as completed.
      if (!last_batch && ends_in_epoch()) return;
    }
    if (batch_idx == 0 && !skipped)
      throw DataError(
          "[trainer.fit] the training loader returned no batch. Is the data set empty, or smaller than one batch with "
          "drop_last?");
    if (at_end || skipped) end_early(batch_idx, at_end);
    if (progress.global_step == steps_before && !continue_epoch && !skipped)
      warn_of_no_step(cat("in the ", batch_idx, " batches of epoch ", progress.epoch));
    end_epoch();
  }

  void begin_epoch(Loader& loader, std::optional<int64_t> batches, bool continue_epoch) {
    Progress& progress = run_.counters;
    schedule_.begin_epoch(batches);
    run_.position.stage = RunningStage::train;
    progress.epochs.ready = progress.epoch + 1;
    loader.start_epoch(progress.epoch);
    step_.set_prefetcher(dynamic_cast<DevicePrefetcher*>(&loader));
    if (continue_epoch) return;
    progress.batches.reset();
    run_.window.restart();
    run_.position.filtered = {.step = progress.global_step + 1, .epoch = progress.epoch + 1};
    repeatable([&] {
      run_.each_due_callback(LogScope::train_epoch, "on_train_epoch_start",
                             [&](Callback& c) { c.on_train_epoch_start(services_.context); });
      module_hook(LogScope::train_epoch, &LightningModule::on_train_epoch_start);
    });
    progress.epochs.started = progress.epoch + 1;
  }

  // Values and the validation that follow a batch.
  void after_batch(int64_t batch_idx, bool last_batch) {
    watch_steps();
    // After a resume with a lower limit or less data, a window may be longer than the rest of the epoch.
    if (last_batch) close_window();
    monitors_.after_batch();
    services_.rows.end_batch(RunningStage::train, false);
    services_.consensus.step();
    // A stop is judged on values from the final weights, as in Lightning.
    request_stop_at_max_time();
    const auto signal = signal_due();
    if (!signal && take_validation(batch_idx, last_batch)) {
      validate();
      services_.consensus.settle();
    } else if (signal && (schedule_.take_due(batch_idx, last_batch) || (stop_follows() && schedule_.may_run()))) {
      // The resumed run makes the validation, and a stop that was requested comes after it.
      run_.validation.pending = !services_.finite.stopped();
      // The validation comes before the epoch's end.
      if (last_batch && run_.validation.pending) throw Interrupted(*signal);
    }
  }

  // Acts on requests between two batches of an epoch; true if training ends here.
  bool ends_in_epoch() {
    services_.checkpoints.act_on_requests();
    if (services_.consensus.take_save_request())
      save_for_signal(run_, services_, /*requeues=*/!std::exchange(requeued_, true));
    stopped_in_epoch_ = stop_at_limit();
    return stopped_in_epoch_;
  }

  // The data ended, or on_train_batch_start skipped the rest of the epoch, before its last batch was known as such.
  void end_early(int64_t batches, bool at_end) {
    Progress& progress = run_.counters;
    close_window();
    services_.rows.end_batch(RunningStage::train, false);
    progress.epochs.processed = progress.epoch + 1;
    if (at_end && !schedule_.interval() && schedule_.take_due(batches, true)) validate();
    if (!at_end || !schedule_.is_left_out(batches)) return;
    log::warn("trainer.short_epoch",
              cat("an epoch ended after ", batches, " batches, before val_check_interval (", *schedule_.interval(),
                  " batches): the validation runs at the end of the epoch"));
    validate();
  }

  // A batch that fails after its step counts as completed, and the resumed run makes up for the validation that follows
  // it.
  void note_missed_validation(int64_t batch_idx, bool last_batch) {
    if (run_.step.progress != StepProgress::done) return;
    count_stepped_batch(run_);
    run_.validation.pending = take_validation(batch_idx, last_batch);
  }

  // An epoch may take days, or never end.
  void watch_steps() {
    const int64_t step = run_.counters.global_step;
    batches_without_step_ = step == watched_step_ ? batches_without_step_ + 1 : 0;
    watched_step_ = step;
    if (batches_without_step_ == std::max(kMostBatchesWithoutStep, 2 * run_.window.target))
      warn_of_no_step(cat("in the last ", batches_without_step_, " batches (", run_.describe_position(), ")"));
  }

  void warn_of_no_step(const std::string& when) const {
    if (run_.handles.empty()) return;
    log::warn("trainer.no_step", cat("no optimizer made a step ", when,
                                     run_.step.manual ? ": training_step did not call optimizers(i).step()"
                                                      : ": training_step returned no loss in any of them"));
  }

  bool read_batch(Loader& loader, int64_t batch_idx) {
    run_.position.reading = batch_idx;
    const DataWait wait(run_.times);
    const auto timer = run_.actions.time("next_batch");
    const bool there = loader.next(run_.position.batch);
    run_.position.reading.reset();
    return there;
  }

  // Ranks with loaders of unknown length end an epoch when the first of them has no batch left, even if the number of
  // batches is limited.
  bool next_batch(Loader& loader, int64_t batch_idx) {
    const bool there = read_batch(loader, batch_idx);
    if (run_.world_size() == 1 || run_.stages[RunningStage::train].sized.front()) return there;
    if (!run_.collectives().any(!there)) return true;
    if (there) loader.unread(), run_.position.batch.clear();
    return false;
  }

  void end_epoch() {
    Progress& progress = run_.counters;
    progress.epochs.processed = progress.epoch + 1;
    run_.collectives().set_activity("the end of an epoch");
    services_.seen.settle();
    services_.rows.settle();
    services_.rank_checks.check_same_ranks();
    repeatable([&] { end_hooks(); }, /*monitors=*/monitors_.monitors());
    ++progress.epoch;
    progress.epochs.completed = progress.epoch;
    progress.batches.reset();
    run_.window.restart();
    services_.checkpoints.act_on_requests();
  }

  void end_hooks() {
    run_.position.filtered = {.step = run_.counters.global_step, .epoch = run_.counters.epoch + 1};
    // The module logs its epoch values before callbacks that monitor them decide.
    const auto end_epoch_of = [&](Callback& c) { c.on_train_epoch_end(services_.context); };
    const auto observes = [](const Callback& c) { return c.phase() == Phase::observe; };
    run_.each_due_callback(LogScope::train_epoch, "on_train_epoch_end", end_epoch_of, observes);
    module_hook(LogScope::train_epoch, &LightningModule::on_train_epoch_end);
    const auto matrices = services_.metrics.close_epoch(RunningStage::train, services_.logs, &run_.collectives());
    LogStore::Window window = services_.logs.close_epoch(RunningStage::train);
    carry_out(run_, services_, services_.finite.judge_running_window());
    send_metrics(run_, services_.logs.take(std::move(window), &run_.collectives()), row_place(run_));
    send_matrices(run_, matrices, row_place(run_));
    run_.each_due_callback(LogScope::train_epoch, "on_train_epoch_end", end_epoch_of, std::not_fn(observes));
    // In manual optimization the module steps the schedules.
    if (!run_.step.manual) step_schedulers(run_, services_, ScheduleInterval::epoch, run_.counters.epoch + 1);
  }

  // Closes a window that is shorter than expected, because the data has ended.
  void close_window() {
    if (run_.window.done > 0) repeatable([&] { step_.close_window(); });
  }

  // Runs work between batches, which a resume repeats if an exception ends it: a checkpoint that a callback then saves
  // contains none of its effects. After an optimizer's step there is no way back. `monitors`: the work may end in a
  // MonitorError, after which the Trainer saves.
  template <class Between>
  void repeatable(Between between, bool monitors = false) {
    run_.step.progress = StepProgress::none;
    if (run_.remembers_batches || monitors) take_rewind_point(run_, services_, logger_states(run_));
    const uint64_t first_ticket = services_.checkpoints.next_ticket();
    const auto undo = [&] {
      if (run_.step.progress >= StepProgress::under_way) return;
      // Requests of the last batch are saved with the state from before the hooks, if there is a rewind point.
      services_.checkpoints.discard_requests("a hook or a step between batches has failed",
                                             run_.rewind_point ? first_ticket : 0);
      if (run_.rewind_point) restore_rewind_point(run_, services_);
    };
    const auto drop = [&] {
      if (!run_.remembers_batches) run_.rewind_point.reset();
    };
    try {
      between();
    } catch (const MonitorError&) {
      undo();
      throw;
    } catch (...) {
      drop();
      undo();
      throw;
    }
    drop();
  }

  RunState& run_;
  Services& services_;
  MonitorCheck monitors_;
  TrainingStep step_;
  static constexpr int64_t kMostBatchesWithoutStep = 1000;
  int64_t batches_without_step_ = 0, watched_step_ = -1;
  ValidationSchedule schedule_;
  bool stopped_in_epoch_ = false;
  bool announced_that_it_continues_ = false;
  bool requeued_ = false;
};

}  // namespace

void fit_loop(RunState& run, Services& services, bool resumed) { FitLoop(run, services).train(resumed); }

}  // namespace fulgur::detail
