#include "setup/run_fit.h"

#include <tuple>

#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "loops/evaluation_loop.h"
#include "loops/fit_loop.h"
#include "loops/monitor_check.h"
#include "loops/rewind.h"
#include "process/peak_memory.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {
constexpr const char* kStopAfterReason = "stop_after";
}  // namespace

void FitResult::fill_own(const RunState& run, Services& services) {
  if (started) report.train_seconds = services.context.elapsed_s() - *started;
  report.epochs = run.counters.epochs.completed;
  report.global_step = run.counters.global_step;
  report.metrics = services.logs.published();
  report.captured_batches = run.captured.batches;
  report.not_captured = run.captured.refused;
  report.captured_validation_batches = run.captured_evaluation.batches;
  report.validation_not_captured = run.captured_evaluation.refused;
  report.run_dir = run.run_dir;
  report.last_checkpoint = services.context.last_checkpoint();
  report.best_checkpoint = services.context.best_checkpoint();
}

void FitResult::fill(RunState& run, Services& services, const std::string& reason) {
  fill_own(run, services);
  report.rank = run.rank();
  report.stop_reason = reason;
  nonfinite = services.finite.stopped();
  report.peak_memory = gather_peak_memory(services.context);
  if (run.components.is_trial) return;
  run.print(cat("stopped: ", report.stop_reason, " · ", counted(report.epochs, "epoch"), ", ",
                counted(report.global_step, "step"),
                " · last checkpoint: ", report.last_checkpoint ? report.last_checkpoint->filename().string() : "none",
                (reason.starts_with("signal ") || reason == kStopAfterReason) && report.last_checkpoint
                    ? " · continue with --resume"
                    : ""));
  run.print(peak_memory_text(report.peak_memory));
  if (const std::string devices = run.strategy->device_report(); !devices.empty()) run.print(devices);
}

void FitResult::fill_failed(const RunState& run, Services& services, ExitCode code) {
  if (run.strategy) report.rank = run.rank();
  fill_own(run, services);
  report.stop_reason = "exception";
  report.exit_code = code;
}

namespace {

// Validation before training: a sanity check whose metrics are discarded, or, with validate_first, one that counts.
void validate_before_training(RunState& run, Services& services) {
  if (!run.validation.runs) return;
  if (run.options.validate_first) {
    validate_in_fit(run, services);
    refuse_misspelt_monitors(run, services);
    services.checkpoints.act_on_requests();
    return;
  }
  const int64_t batches = run.options.num_sanity_val_steps;
  if (batches == 0) return;
  run.position.sanity_checking = true;
  run.each_callback(LogScope::forbidden, "on_sanity_check_start",
                    [&](Callback& c) { c.on_sanity_check_start(services.context); });
  validate_in_fit(run, services, batches < 0 ? std::nullopt : std::optional(batches));
  run.each_callback(LogScope::forbidden, "on_sanity_check_end",
                    [&](Callback& c) { c.on_sanity_check_end(services.context); });
  refuse_misspelt_monitors(run, services);
  services.logs.reset(RunningStage::validate);
  services.metrics.reset(RunningStage::validate);
  run.position.sanity_checking = false;
}

// The last state is saved, no matter what ended the loops.
void write_final_checkpoint(RunState& run, Services& services, const char* reason) {
  services.checkpoints.act_on_requests();  // one of them may save the last state
  if (!run.checkpoints_allowed || run.counters.global_step == 0 || services.checkpoints.is_saved()) return;
  CheckpointRequest request = checkpoint_of_now(services.context, reason);
  if (auto name = services.checkpoints.name_at_batch()) request.name = std::move(*name);
  services.context.request_checkpoint(std::move(request));
  services.checkpoints.act_on_requests();
}

// A run whose final save failed is not finished: a resume repeats the training after the last good checkpoint.
bool last_state_is_saved(const RunState& run, const Services& services) {
  return !run.checkpoints_allowed || run.counters.global_step == 0 || services.checkpoints.is_saved();
}

// The result of a fit that had already finished: the weights, and the metrics.
void take_result(LightningModule& module, const fs::path& checkpoint, FitReport& report) {
  try {
    const CheckpointContent content = read_checkpoint(checkpoint);
    // Those of the checkpoint lack the last rows of the loggers.
    if (report.metrics.empty())
      for (const auto& [name, value] : content.state.at(checkpoint_keys::kMetrics).as_map())
        report.metrics.emplace_back(name, value.as_double());
    const LoadReport loaded =
        load_module_state(module, content.module, {.strict = false, .key_prefixes = {}, .convert_formats = true});
    if (!loaded.differences.empty())
      log::warn("trainer.weights_left_out",
                cat("the weights of ", checkpoint,
                    " were not all loaded; the rest do not fit: ", join(split_text(loaded.differences, '\n'), "; ")));
  } catch (const CheckpointError& error) {
    log::warn("trainer.weights_left_out", cat("the module keeps its weights: ", error.what()));
  }
}

void settle_checkpoints(RunState& run, Services& services, const char* reason = "end of fit") {
  services.rows.settle();
  services.rank_checks.check_same_ranks();
  // A save in flight may fail: then the last state must still be saved.
  services.checkpoints.wait_for_save();
  write_final_checkpoint(run, services, reason);
  services.checkpoints.wait_for_save();
}

void start_clock(RunState& run, Services& services, FitResult& result) {
  run.times.fit_started_s = services.context.elapsed_s();
  result.started = run.times.fit_started_s;
}

// After the loops: what is left is written, and the run is marked as finished if all of it is saved.
void end_fit(RunState& run, Services& services) {
  settle_checkpoints(run, services);
  // Write the rest of a window of step metrics, so that it is not lost. This is done after the checkpoint, in which the
  // window is still open; after a signal, the resumed run closes it.
  services.rows.end_batch(RunningStage::train, true);
  services.rank_checks.check_exchanges();
  run.each_callback(LogScope::forbidden, "on_fit_end", [&](Callback& c) { c.on_fit_end(services.context); });
  run.model->on_fit_end();
  services.checkpoints.act_on_requests();
  services.checkpoints.wait_for_save();
  if (!last_state_is_saved(run, services))
    log::warn(
        "trainer.not_finished",
        cat("the final checkpoint was not written, so the run does not count as finished: --resume trains again from ",
            services.context.last_checkpoint() ? "the last one" : "the start, since there is no other"));
  else if (!services.finite.stopped() && run.is_global_zero())
    mark_finished(run.run_dir, run.stop_reason.value_or(""), run.counters, services.context.fit_time_s(),
                  services.logs.published());
}

// Saves what was trained before a metric was missing. Returns the checkpoint, if there is one.
std::optional<fs::path> save_despite_missing_metric(RunState& run, Services& services) {
  run.position.sanity_checking = false;
  // After a batch's step, what follows it in the batch cannot be made up for.
  const bool is_exact = !run.position.in_batch || (run.step.progress < StepProgress::under_way && run.rewind_point);
  if (!is_exact || !run.checkpoints_allowed || run.counters.global_step == 0) return std::nullopt;
  // The report of the error names the place where it occurred.
  if (run.position.failed_in.empty()) run.position.failed_in = run.place_of_failure();
  try {
    rewind_to_batch_start(run, services);
    settle_checkpoints(run, services, "a monitored metric is missing");
  } catch (const std::exception& error) {
    log::error(cat("while handling an earlier error: ", first_line(error.what())));
    return std::nullopt;
  }
  return services.checkpoints.is_saved() ? services.checkpoints.last() : std::nullopt;
}

// A checkpoint at the end of its run: without a line, the result would look like that of a training.
void print_nothing_to_train(const RunState& run) {
  const std::string reason = run.stop_reason.value_or("");
  run.print(cat("the run of the checkpoint is finished (", reason, ", ",
                counted(run.counters.epochs.completed, "epoch"), ", ", counted(run.counters.global_step, "step"),
                "): there is nothing to train. ", is_of_limit(reason) ? "Raise the limit, or begin" : "Begin",
                " a new run with its weights: --load.loops false"));
}

}  // namespace

void run_fit(RunState& run, Services& services, bool resumes, FitResult& result, const std::function<void()>& filled) {
  run.each_callback(LogScope::forbidden, "on_fit_start", [&](Callback& c) { c.on_fit_start(services.context); });
  run.position.during("on_fit_start of the module", [&] { run.model->on_fit_start(); });
  start_clock(run, services, result);
  try {
    if (!resumes) validate_before_training(run, services);
    start_clock(run, services, result);
    const auto place = [&] { return std::tuple(run.counters.batches_total.completed, run.counters.epochs.completed); };
    const auto before = place();
    fit_loop(run, services, resumes);
    if (resumes && place() == before && !services.finite.stopped()) print_nothing_to_train(run);
  } catch (const Interrupted& interrupted) {
    run.position.sanity_checking = false;
    settle_checkpoints(run, services);
    // The signal does not become the run's stop_reason, which is part of its state: a signal ends this process, not the
    // run.
    result.fill(
        run, services,
        interrupted.signal() == Interrupted::kStopAfter ? kStopAfterReason : cat("signal ", interrupted.signal()));
    filled();
    throw;
  } catch (const MonitorError& error) {
    const auto saved = save_despite_missing_metric(run, services);
    if (!saved) throw;
    throw MonitorError(cat(
        error.what(), " What was trained until then is saved in ", *saved,
        ". If only the name is wrong, correct it and use --resume (with --allow-config-change if it is an option of "
        "the schedule or the module). If the module did not log the metric, correct the module and start again, or "
        "keep "
        "what was learned with --ckpt_path ",
        shell_word(saved->string()), " --load.loops false."));
  }
  end_fit(run, services);
  result.fill(run, services, run.stop_reason.value_or(""));
  filled();
}

namespace {

std::string how_to_train_on(const std::string& reason) {
  if (is_of_limit(reason)) return "Raise the limit, or omit --resume for a new run";
  const bool counts_on = reason.starts_with("EarlyStopping");
  return cat("To train on from its last checkpoint, use --ckpt_path last",
             counts_on ? " and a larger patience, since it counts on" : "", "; for a new run, omit --resume");
}

}  // namespace

FitReport report_of_finished(const FinishedRun& finished, LightningModule* module) {
  log::info(cat("the run in ", finished.run_dir, " is finished (", finished.reason, ", ",
                counted(finished.epochs, "epoch"), ", ", counted(finished.global_step, "step"),
                "): there is nothing to resume. ", how_to_train_on(finished.reason)));
  FitReport report;
  report.stop_reason = cat("finished: ", finished.reason);
  report.epochs = finished.epochs;
  report.global_step = finished.global_step;
  report.run_dir = finished.run_dir;
  report.last_checkpoint = finished.last_checkpoint;
  report.best_checkpoint = finished.best_checkpoint;
  if (finished.metrics) report.metrics = *finished.metrics;
  if (module && finished.last_checkpoint) take_result(*module, *finished.last_checkpoint, report);
  return report;
}

}  // namespace fulgur::detail
