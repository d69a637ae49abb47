#include "fulgur/trainer/trainer.h"

#include <algorithm>
#include <csignal>

#include "evaluation_loop.h"
#include "fit_loop.h"
#include "fulgur/core/log.h"
#include "fulgur/core/rng.h"
#include "fulgur/core/text.h"
#include "run_folder.h"
#include "session.h"
#include "signals.h"

namespace fulgur {
namespace fs = std::filesystem;
using detail::Run;
using detail::Session;

struct Trainer::Impl {
  TrainerOptions options;
  Parts parts;
  fs::path run_dir;
  // What this trainer's last fit left, for `last` and `best` in the same process.
  std::optional<fs::path> last_checkpoint, best_checkpoint;
  bool running = false;
};

namespace {

// Runs `body`; on an exception everything is told and closed, then it goes on to the caller.
template <class Body>
void guarded(Session& session, bool& running, Body body) {
  if (running) throw Error("[trainer] a run is under way; a Trainer runs one at a time.");
  running = true;
  struct Reset {
    bool& flag;
    ~Reset() { flag = false; }
  } reset{running};
  detail::signals::Scope signals;
  try {
    body();
    session.finish(detail::signals::received() ? RunStatus::interrupted : RunStatus::success);
  } catch (const std::exception& error) {
    session.on_exception(error);
    session.finish(RunStatus::failed);
    throw;
  } catch (...) {
    session.finish(RunStatus::failed);
    throw;
  }
}

ExitCode exit_code_of_signal(bool saved) {
  const auto signal = detail::signals::received();
  if (!signal) return ExitCode::ok;
  if (*signal == SIGINT) return ExitCode::interrupted;
  return saved ? ExitCode::preempted : ExitCode::terminated;
}

// `epoch=E-step=S`, E the last epoch that was trained in.
CheckpointRequest final_checkpoint(const Run& run) {
  const Progress& p = run.progress();
  const int64_t epoch = p.batches.completed > 0 ? p.epoch : std::max<int64_t>(p.epoch - 1, 0);
  return {.name = cat("epoch=", epoch, "-step=", p.global_step), .reason = "end of fit", .best = false, .keep = true,
          .weights_only = false, .owner = "trainer", .score = std::nullopt};
}

}  // namespace

Trainer::Trainer(TrainerOptions options, Parts parts) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->parts = std::move(parts);
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Trainer Trainer::from_config(const Config& config) {
  Parts parts;
  parts.config = config.write();
  parts.config_folder = config.folder;
  if (config.optimizer && *config.optimizer) parts.optimizer = config.optimizer;
  if (config.lr_scheduler && *config.lr_scheduler) parts.lr_scheduler = config.lr_scheduler;
  parts.lr_scheduler_interval = config.lr_scheduler_interval == "step" ? ScheduleInterval::step : ScheduleInterval::epoch;
  parts.lr_scheduler_monitor = config.lr_scheduler_monitor;
  if (config.seed_everything.enabled) parts.seed = config.seed_everything.seed ? *config.seed_everything.seed : random_seed();
  log::silence(config.silence);
  // The model is made before a run begins: threads are set before its first operation, and its weights depend on the seed.
  detail::set_threads(detail::decide_threads(config.trainer.num_threads));
  if (parts.seed) seed_everything(*parts.seed);
  return Trainer(config.trainer, std::move(parts));
}

ConfigNode Trainer::resolved_config() const {
  ConfigNode written = impl_->parts.config ? *impl_->parts.config : ConfigNode::map({{"trainer", detail::options_node(impl_->options)}});
  return detail::resolve_config(std::move(written), detail::choose_devices(impl_->options), detail::decide_threads(impl_->options.num_threads),
                                impl_->parts.seed);
}

const TrainerOptions& Trainer::options() const { return impl_->options; }
fs::path Trainer::log_dir() const { return impl_->run_dir; }

namespace {

std::optional<fs::path> resolve_checkpoint(const CheckpointChoice& choice, const TrainerOptions& options, const Parts& parts,
                                           const std::optional<fs::path>& last, const std::optional<fs::path>& best) {
  if (!choice) return std::nullopt;
  if (*choice == "last" && last) return last;
  if (*choice == "best" && best) return best;
  std::string name = detail::kDefaultRunName;
  if (!options.logger.loggers.empty()) name = options.logger.loggers.front().create()->run_name().value_or(name);
  fs::path found = detail::find_checkpoint(*choice, options.default_root_dir, name, parts.config_folder);
  // A link is followed once, so that the report names the checkpoint itself.
  std::error_code error;
  if (fs::is_symlink(found, error)) {
    const fs::path target = fs::read_symlink(found, error);
    if (!error) found = target.is_absolute() ? target : found.parent_path() / target;
  }
  return found;
}

// What every verb does around its loops: `body` receives the prepared run and the checkpoint that was chosen.
template <class Impl, class Body>
void with_run(Impl& impl, Verb verb, std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint, Body body) {
  Session session(impl.options, impl.parts, verb);
  guarded(session, impl.running, [&] {
    const auto path = resolve_checkpoint(checkpoint, impl.options, impl.parts, impl.last_checkpoint, impl.best_checkpoint);
    session.prepare(std::move(module), std::move(data), path);
    Run& run = session.run();
    impl.run_dir = run.run_dir;
    run.start_clock();
    body(run, path);
  });
}

using ChosenCheckpoint = std::optional<fs::path>;

}  // namespace

FitReport Trainer::fit(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  FitReport report;
  with_run(*impl_, Verb::fit, std::move(module), std::move(data), checkpoint, [&](Run& run, const ChosenCheckpoint& path) {
    run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_fit_start(run); });
    run.model->on_fit_start();
    if (!path && run.validation_runs && run.options.num_sanity_val_steps != 0) {
      run.sanity_checking_ = true;
      run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_sanity_check_start(run); });
      detail::validate_in_fit(run, run.options.num_sanity_val_steps < 0 ? std::nullopt : std::optional(run.options.num_sanity_val_steps));
      run.logs.reset(Stage::validate);
      run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_sanity_check_end(run); });
      run.sanity_checking_ = false;
    }
    const double started = run.agreed_time_s();
    detail::fit_loop(run, path.has_value());
    // Whatever ended the run, its last state is on disk.
    if (run.checkpoints_allowed && run.progress_.global_step > 0 && run.last_saved_step_ != run.progress_.global_step) {
      run.request_checkpoint(final_checkpoint(run));
      run.act_on_checkpoint_requests();
    }
    // The rest of a window of step metrics is not lost. Behind the checkpoint, in which the window is still open; after a
    // signal the run that goes on from there closes it.
    if (!detail::signals::received()) run.flush_step_metrics(Stage::train, true);
    report.train_seconds = run.agreed_time_s() - started;
    run.each_callback(detail::LogScope::forbidden, [&](Callback& c) { c.on_fit_end(run); });
    run.model->on_fit_end();
    report.stop_reason = run.stop_reason.value_or("");
    report.epochs = run.progress_.epochs.completed;
    report.global_step = run.progress_.global_step;
    report.metrics = run.logs.published();
    report.run_dir = run.run_dir;
    report.last_checkpoint = impl_->last_checkpoint = run.last_checkpoint_;
    report.best_checkpoint = impl_->best_checkpoint = run.best_checkpoint_;
    report.exit_code = exit_code_of_signal(run.last_checkpoint_.has_value());
    run.print(cat("stopped: ", report.stop_reason, " · ", report.epochs, " epochs, ", report.global_step, " steps · last checkpoint: ",
                  report.last_checkpoint ? report.last_checkpoint->filename().string() : "none"));
  });
  return report;
}

namespace {

template <class Impl>
EvalReport evaluate_with(Impl& impl, Verb verb, Stage stage, std::shared_ptr<LightningModule> module, DataSource data,
                         const CheckpointChoice& checkpoint) {
  EvalReport report;
  with_run(impl, verb, std::move(module), std::move(data), checkpoint, [&](Run& run, const ChosenCheckpoint& path) {
    report = detail::evaluate(run, stage);
    report.run_dir = run.run_dir;
    report.checkpoint = path;
    report.exit_code = exit_code_of_signal(false);
  });
  return report;
}

}  // namespace

EvalReport Trainer::validate(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  return evaluate_with(*impl_, Verb::validate, Stage::validate, std::move(module), std::move(data), checkpoint);
}

EvalReport Trainer::test(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  return evaluate_with(*impl_, Verb::test, Stage::test, std::move(module), std::move(data), checkpoint);
}

PredictReport Trainer::predict(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  PredictReport report;
  with_run(*impl_, Verb::predict, std::move(module), std::move(data), checkpoint, [&](Run& run, const ChosenCheckpoint& path) {
    report = detail::predict(run);
    report.run_dir = run.run_dir;
    report.checkpoint = path;
    if (!run.run_dir.empty()) {
      for (size_t l = 0; l < report.loaders.size(); ++l) {
        const fs::path file = run.run_dir / (report.loaders.size() == 1 ? "predictions.safetensors" : cat("predictions_", l, ".safetensors"));
        NamedTensors tensors(report.loaders[l].begin(), report.loaders[l].end());
        write_safetensors(file, tensors);
        report.files.push_back(file);
      }
    }
    report.exit_code = exit_code_of_signal(false);
  });
  return report;
}

}  // namespace fulgur
