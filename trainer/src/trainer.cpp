#include "fulgur/trainer/trainer.h"

#include <atomic>
#include <csignal>
#include <memory>
#include <set>

#include "checkpointing/resume.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "loops/evaluation_loop.h"
#include "process/signals.h"
#include "setup/allocator.h"
#include "setup/run_fit.h"
#include "setup/run_setup.h"

namespace fulgur {
namespace fs = std::filesystem;
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
  // The modules that runs have prepared.
  std::set<std::weak_ptr<LightningModule>, std::owner_less<std::weak_ptr<LightningModule>>> modules;
  std::vector<std::string> logger_losses;  // of the last run
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
  if (!signal || *signal == Interrupted::kStopAfter) return ExitCode::ok;
  if (*signal == SIGINT) return ExitCode::interrupted;
  return saved ? ExitCode::preempted : ExitCode::terminated;
}

}  // namespace

Trainer::Trainer(TrainerOptions options, TrainerComponents components) : impl_(std::make_shared<Impl>()) {
  detail::check_options(options, "trainer");
  impl_->options = std::move(options);
  impl_->components = std::move(components);
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

namespace {

// The config that a run saves.
ConfigNode config_to_save(const Config& config) {
  if (!config.written_start) return config.write();
  Config saved = config;
  saved.ckpt_path = config.written_start->ckpt_path;
  saved.load = config.written_start->load;
  return saved.write();
}

}  // namespace

Trainer Trainer::from_config(const Config& config, TrainerComponents components) {
  components.config = config_to_save(config);
  components.config_folder = config.folder;
  components.load = config.load;
  components.pretrained = config.pretrained;
  components.adapters = config.adapters;
  components.verified_checkpoint = config.verified_checkpoint;
  components.begins_again = config.begins_again;
  components.profile_steps = config.profile_steps;
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
  detail::set_kept_memory(impl_->options.allocator);
  if (impl_->components.seed) seed_everything(*impl_->components.seed);
}

ConfigNode Trainer::resolved_config() const {
  ConfigNode written = impl_->components.config
                           ? *impl_->components.config
                           : ConfigNode::map({{"trainer", FieldTraits<TrainerOptions>::write(impl_->options)}});
  return detail::resolve_config(std::move(written), detail::choose_devices(impl_->options),
                                detail::given_threads(impl_->options.num_threads),
                                decide_cpu_matmul(impl_->options.cpu_matmul), impl_->components.seed);
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
    setup.state().keeps_weights = impl->modules.contains(module);
    setup.prepare(module, std::move(data), checkpoint, impl->latest);
    impl->modules.insert(module);
    impl->run_dir = setup.state().run_dir;
    setup.start();
    body(setup.state(), setup.services(), setup.checkpoint());
  };
  const std::optional<int> signal = guarded(setup, impl->running, whole, failed);
  impl->logger_losses = setup.logger_losses();
  return signal;
}

using ChosenCheckpoint = std::optional<fs::path>;

}  // namespace

FitReport Trainer::fit(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& checkpoint) {
  const auto impl = impl_;
  // A profile resumes nothing, like every trial run.
  if (checkpoint == "auto" && impl->components.profile_steps == 0) {
    if (const auto finished = detail::find_finished_run(impl->options, impl->components)) {
      impl->run_dir = finished->run_dir;
      impl->latest = {.last = finished->last_checkpoint, .best = finished->best_checkpoint};
      impl->last_fit = detail::report_of_finished(*finished, module.get());
      return *impl->last_fit;
    }
  }
  detail::FitResult result;
  const auto failed = [&](RunState& run, Services& services, ExitCode code) {
    result.fill_failed(run, services, code);
    if (result.report.last_checkpoint) impl->latest = result.latest();
    impl->last_fit = result.report;
  };
  const auto signal = with_run(
      impl, TrainerFn::fit, std::move(module), std::move(data), checkpoint,
      [&](RunState& run, Services& services, const ChosenCheckpoint& path) {
        detail::run_fit(run, services, path && run.load.loads_loops(), result, [&] { impl->latest = result.latest(); });
      },
      failed);
  FitReport& report = result.report;
  report.logger_losses = impl->logger_losses;
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
