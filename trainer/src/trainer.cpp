#include "fulgur/trainer/trainer.h"

#include <algorithm>
#include <atomic>
#include <csignal>

#include "checkpointing/resume.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "loops/evaluation_loop.h"
#include "loops/fit_loop.h"
#include "loops/monitor_check.h"
#include "loops/rewind.h"
#include "process/peak_memory.h"
#include "process/signals.h"
#include "setup/run_setup.h"

namespace fulgur {
namespace fs = std::filesystem;
using detail::checkpoint_of_now;
using detail::RunSetup;
using detail::RunState;
using detail::Services;

struct Trainer::Impl {
  TrainerOptions options;
  TrainerComponents components;
  fs::path run_dir;
  // The checkpoints of this trainer's last fit, for `last` and `best` in the same process.
  detail::LatestCheckpoints latest;
  std::optional<FitReport> last_fit;
  std::atomic<bool> running = false;
};

namespace {

ExitCode code_of(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return own ? own->code() : ExitCode::other;
}

// The single code path around every run, however it ends: normally, by a signal, by an exception. Returns the signal.
// `failed` is called with the exit code while the run that an exception has ended still exists.
template <class Body, class Failed>
std::optional<int> guarded(RunSetup& setup, std::atomic<bool>& running, Body body, Failed failed) {
  if (running.exchange(true)) throw Error("[trainer] a run is in progress; a Trainer runs one at a time.");
  struct Reset {
    std::atomic<bool>& flag;
    ~Reset() { flag = false; }
  } reset{running};
  detail::signals::Scope signals;
  try {
    body();
    setup.finish(RunStatus::success);
    return std::nullopt;
  } catch (const Interrupted& signal) {
    setup.on_exception(signal);
    setup.finish(RunStatus::interrupted);
    return signal.signal();
  } catch (const std::exception& error) {
    setup.on_exception(error);
    failed(setup.state(), setup.services(), code_of(error));
    setup.finish(RunStatus::failed);
    throw;
  } catch (...) {
    setup.on_exception(Error("an exception that is not a std::exception"));
    failed(setup.state(), setup.services(), ExitCode::other);
    setup.finish(RunStatus::failed);
    throw;
  }
}

ExitCode exit_code_of(std::optional<int> signal, bool saved) {
  if (!signal) return ExitCode::ok;
  if (*signal == SIGINT) return ExitCode::interrupted;
  return saved ? ExitCode::preempted : ExitCode::terminated;
}

}  // namespace

Trainer::Trainer(TrainerOptions options, TrainerComponents components) : impl_(std::make_shared<Impl>()) {
  impl_->options = std::move(options);
  impl_->components = std::move(components);
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Trainer Trainer::from_config(const Config& config) {
  TrainerComponents components;
  components.config = config.write();
  components.config_folder = config.folder;
  components.load = config.load;
  components.verified_checkpoint = config.verified_checkpoint;
  if (config.optimizer && *config.optimizer) components.optimizer = config.optimizer;
  if (config.lr_scheduler && *config.lr_scheduler) components.lr_scheduler = config.lr_scheduler;
  components.lr_scheduler_config = {.scheduler = nullptr,
                                    .interval = config.lr_scheduler_interval,
                                    .frequency = config.lr_scheduler_frequency,
                                    .monitor = config.lr_scheduler_monitor,
                                    .strict = config.lr_scheduler_strict,
                                    .name = config.lr_scheduler_name.value_or("")};
  if (config.seed_everything.enabled)
    components.seed = config.seed_everything.seed ? *config.seed_everything.seed : random_seed();
  components.silence = config.silence;
  return Trainer(config.trainer, std::move(components));
}

void Trainer::prepare_process() const {
  log::silence(impl_->components.silence);
  detail::set_threads(detail::decide_threads(impl_->options.num_threads));
  if (impl_->components.seed) seed_everything(*impl_->components.seed);
}

ConfigNode Trainer::resolved_config() const {
  ConfigNode written = impl_->components.config ? *impl_->components.config
                                                : ConfigNode::map({{"trainer", detail::options_node(impl_->options)}});
  return detail::resolve_config(std::move(written), detail::choose_devices(impl_->options),
                                detail::decide_threads(impl_->options.num_threads), impl_->components.seed);
}

int64_t count_processes(const TrainerOptions& options) {
  const DeviceUse use = options.strategy.create()->device_use();
  return use == DeviceUse::one_each ? static_cast<int64_t>(detail::choose_devices(options, use).devices.size()) : 1;
}

const TrainerOptions& Trainer::options() const { return impl_->options; }
fs::path Trainer::log_dir() const { return impl_->run_dir; }
std::optional<FitReport> Trainer::last_fit() const { return impl_->last_fit; }

namespace {

constexpr auto kNothingMore = [](RunState&, Services&, ExitCode) {};

// The code that every verb runs around its loops: `body` receives the prepared run, `failed` the run that an exception
// has ended. Returns the signal that ended it.
template <class Impl, class Body, class Failed = decltype(kNothingMore)>
std::optional<int> with_run(std::shared_ptr<Impl> impl, TrainerFn fn, std::shared_ptr<LightningModule> module,
                            DataSource data, const CheckpointChoice& checkpoint, Body body,
                            Failed failed = kNothingMore) {
  RunSetup setup(impl->options, impl->components, fn);
  const auto whole = [&] {
    setup.prepare(std::move(module), std::move(data), checkpoint, impl->latest);
    impl->run_dir = setup.state().run_dir;
    setup.start();
    body(setup.state(), setup.services(), setup.checkpoint());
  };
  return guarded(setup, impl->running, whole, failed);
}

using ChosenCheckpoint = std::optional<fs::path>;

// Validation before training: a sanity check whose metrics are discarded, or, with validate_first, one that counts.
void validate_before_training(RunState& run, Services& services) {
  if (!run.validation.runs) return;
  if (run.options.validate_first) {
    detail::validate_in_fit(run, services);
    detail::refuse_misspelt_monitors(run, services);
    ++run.counters.validations;
    services.checkpoints.act_on_requests();
    return;
  }
  const int64_t batches = run.options.num_sanity_val_steps;
  if (batches == 0) return;
  run.position.sanity_checking = true;
  run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_sanity_check_start(services.context); });
  detail::validate_in_fit(run, services, batches < 0 ? std::nullopt : std::optional(batches));
  run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_sanity_check_end(services.context); });
  detail::refuse_misspelt_monitors(run, services);
  services.logs.reset(RunningStage::validate);
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
    for (const auto& [name, value] : content.state.at("metrics").as_map())
      report.metrics.emplace_back(name, value.as_double());
    const LoadReport loaded =
        load_module_state(module, content.module, {.strict = false, .key_prefixes = {}, .convert_formats = true});
    if (!loaded.differences.empty())
      log::warn("trainer.weights_left_out",
                cat("the weights of ", checkpoint, " were not all loaded; the rest do not fit:\n", loaded.differences));
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

// The report of a fit, as it comes to be known.
struct FitResult {
  FitReport report = {};
  std::optional<double> started = {};  // the time at which the loops started
  bool nonfinite = false;

  // Fills in the values that need no other rank.
  void fill_own(const RunState& run, Services& services) {
    if (started) report.train_seconds = services.context.elapsed_s() - *started;
    report.epochs = run.counters.epochs.completed;
    report.global_step = run.counters.global_step;
    report.metrics = services.logs.published();
    report.captured_batches = run.captured.batches;
    report.not_captured = run.captured.refused;
    report.run_dir = run.run_dir;
    report.last_checkpoint = services.context.last_checkpoint();
    report.best_checkpoint = services.context.best_checkpoint();
  }

  void fill(RunState& run, Services& services, const std::string& reason) {
    fill_own(run, services);
    report.rank = run.rank();
    report.stop_reason = reason;
    nonfinite = services.finite.stopped();
    run.print(cat("stopped: ", report.stop_reason, " · ", counted(report.epochs, "epoch"), ", ",
                  counted(report.global_step, "step"),
                  " · last checkpoint: ", report.last_checkpoint ? report.last_checkpoint->filename().string() : "none",
                  reason.starts_with("signal ") && report.last_checkpoint ? " · continue with --resume" : ""));
    report.peak_memory = detail::gather_peak_memory(services.context);
    run.print(peak_memory_text(report.peak_memory));
    if (const std::string devices = run.strategy->device_report(); !devices.empty()) run.print(devices);
  }

  void fill_failed(const RunState& run, Services& services, ExitCode code) {
    if (run.strategy) report.rank = run.rank();
    fill_own(run, services);
    report.stop_reason = "exception";
    report.exit_code = code;
  }

  detail::LatestCheckpoints latest() const { return {.last = report.last_checkpoint, .best = report.best_checkpoint}; }
};

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
  run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_fit_end(services.context); });
  run.model->on_fit_end();
  services.checkpoints.act_on_requests();
  services.checkpoints.wait_for_save();
  if (!last_state_is_saved(run, services))
    log::warn("trainer.not_finished",
              "the final checkpoint was not written, so the run does not count as finished: --resume trains again from "
              "the last one");
  else if (!services.finite.stopped() && run.is_global_zero())
    detail::mark_finished(run.run_dir, run.stop_reason.value_or(""), run.counters, services.context.fit_time_s());
}

// Saves what was trained before a metric was missing. Returns the checkpoint, if there is one.
std::optional<fs::path> save_despite_missing_metric(RunState& run, Services& services) {
  run.position.sanity_checking = false;
  const bool is_exact =
      !run.position.in_batch || run.step.progress == detail::StepProgress::done || run.rewind_point.there();
  if (!is_exact || !run.checkpoints_allowed || run.counters.global_step == 0) return std::nullopt;
  // The report of the error names the place where it occurred.
  if (run.position.failed_in.empty()) run.position.failed_in = run.place_of_failure();
  try {
    detail::rewind_to_batch_start(run, services);
    settle_checkpoints(run, services, "a monitored metric is missing");
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    log::error(cat("while handling an earlier error: ", text.substr(0, text.find('\n'))));
    return std::nullopt;
  }
  return services.checkpoints.is_saved() ? services.checkpoints.last() : std::nullopt;
}

// `filled` is called once the report is complete.
template <class Filled>
void run_fit(RunState& run, Services& services, bool resumes, FitResult& result, Filled filled) {
  run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_fit_start(services.context); });
  run.position.doing = "on_fit_start of the module";
  run.model->on_fit_start();
  run.position.doing = nullptr;
  start_clock(run, services, result);
  try {
    if (!resumes) validate_before_training(run, services);
    start_clock(run, services, result);
    detail::fit_loop(run, services, resumes);
  } catch (const Interrupted& interrupted) {
    run.position.sanity_checking = false;
    settle_checkpoints(run, services);
    // The signal does not become the run's stop_reason, which is part of its state: a signal ends this process, not the
    // run.
    result.fill(run, services, cat("signal ", interrupted.signal()));
    filled();
    throw;
  } catch (const MonitorError& error) {
    const auto saved = save_despite_missing_metric(run, services);
    if (!saved) throw;
    throw MonitorError(cat(error.what(), " What was trained until then is saved in ", *saved,
                           ": once the monitor is right, --resume continues from there."));
  }
  end_fit(run, services);
  result.fill(run, services, run.stop_reason.value_or(""));
  filled();
}

// The report of a run that was finished before, whose module gets the weights.
FitReport report_of_finished(const detail::FinishedRun& finished, LightningModule* module) {
  log::info(cat("the run in ", finished.run_dir, " is finished (", finished.reason, ", ",
                counted(finished.epochs, "epoch"), ", ", counted(finished.global_step, "step"),
                "): there is nothing to resume. ",
                detail::is_of_limit(finished.reason)
                    ? "Raise the limit, or omit --resume for a new run"
                    : "To train on from its last checkpoint, use --ckpt_path last; for a new run, omit --resume"));
  FitReport report;
  report.stop_reason = cat("finished: ", finished.reason);
  report.epochs = finished.epochs;
  report.global_step = finished.global_step;
  report.run_dir = finished.run_dir;
  report.last_checkpoint = finished.last_checkpoint;
  report.best_checkpoint = finished.best_checkpoint;
  if (module && finished.last_checkpoint) take_result(*module, *finished.last_checkpoint, report);
  return report;
}

}  // namespace

FitReport Trainer::fit(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  const auto impl = impl_;
  if (checkpoint == "auto") {
    if (const auto finished = detail::find_finished_run(impl->options, impl->components)) {
      impl->run_dir = finished->run_dir;
      impl->latest = {.last = finished->last_checkpoint, .best = finished->best_checkpoint};
      impl->last_fit = report_of_finished(*finished, module.get());
      return *impl->last_fit;
    }
  }
  FitResult result;
  const auto failed = [&](RunState& run, Services& services, ExitCode code) {
    result.fill_failed(run, services, code);
    if (result.report.last_checkpoint) impl->latest = result.latest();
    impl->last_fit = result.report;
  };
  const auto signal = with_run(
      impl, TrainerFn::fit, std::move(module), std::move(data), checkpoint,
      [&](RunState& run, Services& services, const ChosenCheckpoint& path) {
        run_fit(run, services, path && run.load.loads_loops(), result, [&] { impl->latest = result.latest(); });
      },
      failed);
  FitReport& report = result.report;
  report.exit_code = result.nonfinite ? ExitCode::non_finite : exit_code_of(signal, report.last_checkpoint.has_value());
  impl->last_fit = report;
  return report;
}

namespace {

// `evaluate` makes the report; if a signal interrupts it, the report at least says where it was.
template <class Report, class Evaluate>
void report_of(Report& report, const RunState& run, const ChosenCheckpoint& checkpoint, Evaluate evaluate) {
  const auto place = [&] {
    report.rank = run.rank();
    report.run_dir = run.run_dir;
    report.checkpoint = checkpoint;
  };
  place();
  report = evaluate();
  place();
}

template <class Impl>
EvalReport evaluate_with(const std::shared_ptr<Impl>& impl, TrainerFn fn, RunningStage stage,
                         std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  EvalReport report;
  const auto signal = with_run(impl, fn, std::move(module), std::move(data), checkpoint,
                               [&](RunState& run, Services& services, const ChosenCheckpoint& path) {
                                 report_of(report, run, path, [&] { return detail::evaluate(run, services, stage); });
                               });
  report.exit_code = exit_code_of(signal, false);
  return report;
}

}  // namespace

EvalReport Trainer::validate(std::shared_ptr<LightningModule> module, DataSource data,
                             const CheckpointChoice& checkpoint) {
  return evaluate_with(impl_, TrainerFn::validate, RunningStage::validate, std::move(module), std::move(data),
                       checkpoint);
}

EvalReport Trainer::test(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  return evaluate_with(impl_, TrainerFn::test, RunningStage::test, std::move(module), std::move(data), checkpoint);
}

PredictReport Trainer::predict(std::shared_ptr<LightningModule> module, DataSource data,
                               const CheckpointChoice& checkpoint) {
  PredictReport report;
  const auto signal = with_run(impl_, TrainerFn::predict, std::move(module), std::move(data), checkpoint,
                               [&](RunState& run, Services& services, const ChosenCheckpoint& path) {
                                 report_of(report, run, path, [&] { return detail::predict(run, services); });
                               });
  report.exit_code = exit_code_of(signal, false);
  return report;
}

}  // namespace fulgur
