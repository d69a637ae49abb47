#include "setup/run_setup.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <typeinfo>

#include "checkpointing/resume.h"
#include "checkpointing/run_checkpoint.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/log.h"
#include "fulgur/core/memory_stats.h"
#include "fulgur/core/rng.h"
#include "fulgur/core/text.h"
#include "fulgur/data/combined_loader.h"
#include "fulgur/data/device_prefetcher.h"
#include "loops/evaluation_loop.h"
#include "loops/fit_loop.h"
#include "loops/rewind.h"
#include "process/run_folder.h"
#include "run/memory_format.h"
#include "run/replica_context.h"
#include "setup/allocator.h"
#include "setup/failed_layers.h"
#include "setup/failure_hints.h"
#include "setup/plan_optimizers.h"
#include "setup/rank_consistency.h"
#include "setup/recurrent_dropout.h"
#include "setup/shared_data.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

void RunSetup::choose_hardware() {
  RunState& run = run_->state;
  threads_ = decide_threads(run.options.num_threads);
  set_threads(threads_);
  auto precision = run.components.precision ? run.components.precision : run.options.precision.create();
  run.strategy = run.components.strategy ? run.components.strategy : run.options.strategy.create();
  check_allocator(run.options.allocator);
  devices_ = choose_devices(run.options, run.strategy->device_use());
  set_allocator(run.options.allocator, devices_.accelerator->name());
  run.strategy->configure({.devices = devices_.devices,
                           .devices_are_auto = devices_.is_auto,
                           .num_nodes = run.options.num_nodes,
                           .sync_batchnorm = run.options.sync_batchnorm,
                           .precision = std::move(precision)});
  // From here on `at::kCUDA` without an index means this device, as in Lightning. Some kinds of device have no current
  // one (a strategy's own stand-ins).
  if (const at::Device device = run.strategy->device();
      !device.is_cpu() && c10::impl::hasDeviceGuardImpl(device.type()))
    current_device_.emplace(device);
  if (fn_ == TrainerFn::fit)
    for (const at::Device& device : run.strategy->devices()) reset_peak_memory(device);
  // The seed drawn by each process: samplers of all ranks need the same one.
  if (run.components.config) {
    const std::string own = run.seed ? std::to_string(*run.seed) : std::string();
    if (const std::string first = run.collectives().broadcast_text(own, 0); !first.empty())
      run.seed = std::stoull(first);
  }
  // Each rank draws its own numbers; weights are rank 0's.
  if (run.seed) {
    seed_everything(rank_seed(*run.seed, run.rank()));
    seed_devices(rank_seed(*run.seed, run.rank()), run.strategy->devices());
  }
  if (!run.is_global_zero()) log::leave_console(cat("rank ", run.rank()));
}

void RunSetup::make_callbacks() {
  RunState& run = run_->state;
  Services& services = run_->services;
  std::vector<std::shared_ptr<Callback>> list;
  for (const auto& spec : run.options.callbacks) list.push_back(spec.create());
  for (const auto& callback : run.components.callbacks) list.push_back(callback);
  for (auto& own : run.model->configure_callbacks()) {
    // A callback of the module replaces a configured one of the same class.
    const Callback& replacing = *own;
    std::erase_if(list, [&](const auto& item) {
      const Callback& other = *item;
      return typeid(other) == typeid(replacing);
    });
    list.push_back(std::move(own));
  }
  const auto has_phase = [&](Phase phase) {
    return std::any_of(list.begin(), list.end(), [&](const auto& c) { return c->phase() == phase; });
  };
  if (!run.options.enable_checkpointing && has_phase(Phase::checkpoint))
    throw ConfigError(
        "[trainer.callbacks] enable_checkpointing is false, but a checkpoint callback is configured. Remove one of the "
        "two.");
  const auto add_default = [&](const char* name) {
    if (std::none_of(list.begin(), list.end(), [&](const auto& c) { return c->state_key() == name; }))
      list.push_back(Spec<Callback>(name).create());
  };
  const bool checkpoints = std::any_of(list.begin(), list.end(),
                                       [](const auto& c) { return c->state_key().starts_with("ModelCheckpoint"); });
  if (fn_ == TrainerFn::fit && run.options.enable_checkpointing && !checkpoints) add_default("ModelCheckpoint");
  if (fn_ == TrainerFn::fit && run.options.enable_model_summary) add_default("ModelSummary");
  if (run.options.enable_progress_bar && run.is_global_zero()) add_default("ProgressBar");
  for (const auto& callback : list) {
    services.logs.monitor(callback->monitored_metrics());
    run.remembers_batches |=
        ComponentAccess::overridden(*callback).has(Hook::on_exception) && callback->saves_on_exception();
  }
  run.callbacks.set(std::move(list));
}

void RunSetup::make_loggers() {
  RunState& run = run_->state;
  if (run.fast_dev_run() || run.options.barebones || !run.is_global_zero()) return;
  if (run.options.logger.enabled) {
    if (run.options.logger.loggers.empty() && run.components.loggers.empty())
      for (const char* name : {"CsvLogger", "JsonlLogger"}) run.active_loggers.push_back(Spec<Logger>(name).create());
    for (const auto& spec : run.options.logger.loggers) run.active_loggers.push_back(spec.create());
  }
  for (const auto& logger : run.components.loggers) run.active_loggers.push_back(logger);
}

void RunSetup::create_run_folder() {
  RunState& run = run_->state;
  Services& services = run_->services;
  RunName name;
  if (!run.active_loggers.empty())
    name = {.name = run.active_loggers.front()->run_name().value_or(kDefaultRunName),
            .version = run.active_loggers.front()->run_version()};
  for (const auto& logger : run.active_loggers) {
    const auto other = logger->run_name();
    const auto other_version = logger->run_version();
    if ((other && *other != name.name) || (other_version && other_version != name.version))
      throw ConfigError(
          "[trainer.logger] loggers request different run folders; name and version of the first count. Set them in "
          "only one logger.");
  }
  // A trial run leaves nothing behind.
  if (run.fast_dev_run() || run.options.barebones) return;
  // Rank 0 chooses and writes the folder.
  if (run.is_global_zero()) {
    // An evaluation reads the version's checkpoints, and has its own folder.
    if (fn_ != TrainerFn::fit && name.version && is_taken(run.options.default_root_dir, name)) name.version.reset();
    run.run_dir = resumed_run_dir_ ? *resumed_run_dir_ : take_run_folder(run.options.default_root_dir, name);
    run.run_dir = fs::absolute(run.run_dir).lexically_normal();
    if (!lock_) lock_.emplace(run.run_dir);
    std::error_code error;
    if (fn_ == TrainerFn::fit && run.checkpoints_allowed)
      fs::create_directory(checkpoint_folder_of(run.run_dir), error);
  }
  run.run_dir = run.collectives().broadcast_text(run.run_dir.string(), 0);
  if (!run.is_global_zero()) {
    if (run.run_dir.empty()) return;
    std::error_code error;
    fs::create_directories(run.run_dir, error);
    log::write_to(run.run_dir / cat("rank_", run.rank(), ".log"));
    return;
  }
  std::optional<int64_t> resume_step;
  if (resumed_run_dir_) {
    // Nothing is kept of a fit that begins again.
    resume_step = content_ ? content_->state.at("progress").at("global_step").as_int() : -1;
    load_from_checkpoint(LoadPhase::loggers);
    remove_leftovers(services.context.checkpoint_dir());
    unmark_finished(run.run_dir);
  }
  for (const auto& logger : run.active_loggers) {
    logger->start(run.run_dir, resume_step);
    started_loggers_.push_back(logger);
  }
}

void RunSetup::check_options() const {
  const RunState& run = run_->state;
  if (run.options.has_no_limit)
    log::warn("trainer.no_limit",
              cat("neither max_epochs nor max_steps nor max_time is set; training stops after ",
                  *run.options.epoch_limit, " epochs. Set one of them (max_epochs: -1 for no limit)"));
  run.options.check(fn_, run.model->automatic_optimization());
}

namespace {

Loaders own_dataloaders(LightningModule& module, RunningStage stage) {
  switch (stage) {
    case RunningStage::train:
      return module.train_dataloader();
    case RunningStage::validate:
      return module.val_dataloader();
    case RunningStage::test:
      return module.test_dataloader();
    case RunningStage::predict:
      return module.predict_dataloader();
  }
  return {};
}

const char* dataloader_hook(RunningStage stage) {
  return stage == RunningStage::train      ? "train_dataloader"
         : stage == RunningStage::validate ? "val_dataloader"
         : stage == RunningStage::test     ? "test_dataloader"
                                           : "predict_dataloader";
}

}  // namespace

// A batch may be moved to the device ahead of time only if nothing inspects or moves it first.
bool RunSetup::reads_ahead() const {
  const RunState& run = run_->state;
  const auto moves = [](const HookMask& mask) {
    return mask.has(Hook::on_before_batch_transfer) || mask.has(Hook::transfer_batch_to_device);
  };
  return !run.device().is_cpu() && !moves(ComponentAccess::overridden(*run.model)) &&
         (!run.data.module || !moves(ComponentAccess::overridden(*run.data.module)));
}

// With ranks that train in lockstep, the fewest batches of any; for an evaluation, in which each rank ends
// independently, the most. Unknown if one rank does not know.
std::vector<std::optional<int64_t>> RunSetup::agreed_lengths(RunningStage stage,
                                                             std::vector<std::optional<int64_t>> lengths,
                                                             const std::vector<SharedData>& shared) {
  Collectives& collectives = run_->state.collectives();
  if (collectives.world_size() == 1) return lengths;
  const auto count = static_cast<int64_t>(lengths.size());
  const std::vector<int64_t> counts = collectives.start_max({count, -count})->take();
  if (counts[0] != -counts[1])
    throw ConfigError(cat("[trainer.data] all ranks must have the same number of ", name_of(stage),
                          " loaders; some have ", -counts[1], ", others ", counts[0], "."));
  // The minimum is the maximum of the negated numbers.
  std::vector<int64_t> numbers;
  for (const auto& length : lengths)
    numbers.insert(numbers.end(),
                   {length ? 0 : 1, stage == RunningStage::train ? -length.value_or(0) : length.value_or(0)});
  // Ranks that share data must have the same data set: maximum equals minimum, and unknown only for all.
  for (const SharedData& data : shared)
    for (const int64_t number : data.numbers()) numbers.insert(numbers.end(), {number, ~number});
  const std::vector<int64_t> agreed = collectives.start_max(std::move(numbers))->take();
  for (size_t i = 2 * lengths.size(); i < agreed.size(); i += 2)
    if (agreed[i] != ~agreed[i + 1]) throw_other_data(collectives, stage, shared);
  for (size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = agreed[2 * i] != 0 ? std::nullopt : std::optional(std::abs(agreed[2 * i + 1]));
  return lengths;
}

void RunSetup::set_up_stage(RunningStage stage, const BatchLimit& limit, std::string_view option) {
  RunState& run = run_->state;
  const Loaders& given = stage == RunningStage::train      ? run.data.train
                         : stage == RunningStage::validate ? run.data.validation
                         : stage == RunningStage::test     ? run.data.test
                                                           : run.data.predict;
  Loaders loaders = run.data.module  ? run.data.module->loaders(stage)
                    : !given.empty() ? given
                                     : own_dataloaders(*run.model, stage);
  std::erase(loaders, nullptr);
  if (stage == RunningStage::train && loaders.size() > 1) {
    std::vector<CombinedLoader::Named> named;
    for (auto& loader : loaders) named.emplace_back(std::to_string(named.size()), std::move(loader));
    loaders = {std::make_shared<CombinedLoader>(std::move(named))};
  }
  if (stage == RunningStage::train) {
    Progress now = run.counters;
    now.fit_time_s = 0;
    run.loaders_created_at = now.state();
  }
  StageLoaders target;
  std::vector<std::optional<int64_t>> lengths;
  std::vector<SharedData> shared;
  for (auto& loader : loaders) {
    if (stage == RunningStage::train && run.world_size() > 1) loader->share_evenly(run.options.uneven_shares);
    const bool shares = run.options.use_distributed_sampler;
    const uint64_t seed = run.seed.value_or(0);
    try {
      if (shares && run.world_size() > 1) shared.push_back(SharedData::of(*loader, seed));
      loader->configure(seed, shares ? run.rank() : 0, shares ? run.world_size() : 1);
    } catch (const DataError& error) {
      // Several loaders may have the same name, or none.
      throw DataError(cat(error.what(), " This is the ", name_of(stage), " loader",
                          loaders.size() > 1 ? cat(" at index ", target.loaders.size()) : "", "."));
    }
    if (stage == RunningStage::train && !run.options.overfit_batches.is_zero() && loader->shuffles()) {
      if (!loader->keep_order())
        throw ConfigError(
            "[trainer.overfit_batches] the training loader shuffles and cannot keep the dataset's order, so the "
            "batches would differ from epoch to "
            "epoch. Use a loader without shuffling.");
      log::warn("trainer.overfit_unshuffled", "overfit_batches: the training loader does not shuffle in this run");
    }
    if (stage != RunningStage::train && loader->shuffles())
      log::warn("data.evaluation_shuffled",
                cat("the ", name_of(stage), " loader shuffles; evaluation needs no random order"));
    lengths.push_back(loader->size());
    if (reads_ahead()) loader = std::make_shared<DevicePrefetcher>(std::move(loader), run.device());
    target.loaders.push_back(std::move(loader));
  }
  // A fraction is of all ranks' common length, so that no rank refuses what others accept; a rank may have fewer.
  const auto agreed = agreed_lengths(stage, lengths, shared);
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto batches = limit.resolve(agreed[i], option);
    if (stage != RunningStage::train && batches && lengths[i]) batches = std::min(*batches, *lengths[i]);
    target.batches.push_back(batches);
    target.sized.push_back(agreed[i].has_value());
  }
  run.stages[stage] = std::move(target);
}

const char* RunSetup::limit_name(const char* option) const {
  return run_->state.options.overfit_batches.is_zero() ? option : "overfit_batches";
}

namespace {

// Throws if two callbacks keep state under one key. Called after their setup: a state may need it.
void check_state_keys(RunState& run) {
  std::set<std::string> keys;
  run.each_callback(LogScope::forbidden, [&](Callback& callback) {
    const bool stateful = !callback.state().as_map().empty();
    if (stateful && !keys.insert(callback.state_key()).second)
      throw ConfigError(cat("[trainer.callbacks] two callbacks keep state under the key '", callback.state_key(),
                            "'. The key has the options that tell them apart: let one of those differ, or override "
                            "state_key()."));
  });
}

}  // namespace

void RunSetup::set_up_data() {
  RunState& run = run_->state;
  const TrainerOptions& o = run.options;
  const RunningStage first_stage = fn_ == TrainerFn::fit        ? RunningStage::train
                                   : fn_ == TrainerFn::validate ? RunningStage::validate
                                   : fn_ == TrainerFn::test     ? RunningStage::test
                                                                : RunningStage::predict;
  const bool loaders_given =
      !run.data.train.empty() || !run.data.validation.empty() || !run.data.test.empty() || !run.data.predict.empty();
  if (run.data.module && loaders_given)
    throw ConfigError("[trainer.data] both a data module and loaders are given. Use one of the two.");
  if ((run.data.module || loaders_given) && !own_dataloaders(*run.model, first_stage).empty())
    throw ConfigError(cat("[trainer.data] both ", run.data.module ? "a data module" : "loaders",
                          " and the module's own ", dataloader_hook(first_stage),
                          "() are given. Omit the data, or do not override ", dataloader_hook(first_stage), "()."));
  run.reload_loaders = [this](RunningStage stage) {
    if (stage == RunningStage::train)
      set_up_stage(stage, run_->state.options.limit_train_batches, limit_name("limit_train_batches"));
    else
      set_up_stage(stage, run_->state.options.limit_val_batches, limit_name("limit_val_batches"));
  };
  switch (fn_) {
    case TrainerFn::fit:
      set_up_stage(RunningStage::train, o.limit_train_batches, limit_name("limit_train_batches"));
      if (run.stages[RunningStage::train].loaders.empty())
        throw ConfigError(
            "[trainer.fit] there is no training data. Give a data module (data: in the config) or a loader.");
      if (!o.limit_val_batches.is_zero())
        set_up_stage(RunningStage::validate, o.limit_val_batches, limit_name("limit_val_batches"));
      run.validation.runs = !run.stages[RunningStage::validate].loaders.empty();
      if (run.validation.runs && !ComponentAccess::overridden(*run.model).has(Hook::validation_step)) {
        warn_no_validation_step();
        run.validation.runs = false;
      }
      if (run.stages[RunningStage::train].batches.front() == 0 && !o.limit_train_batches.is_zero())
        throw DataError(
            "[trainer.fit] the training loader has no batch. Is the data set empty, or smaller than one batch with "
            "drop_last?");
      // Throws now, not after an epoch, if the interval is invalid.
      if (run.validation.runs) validation_interval(o, run.stages[RunningStage::train].batches.front());
      break;
    case TrainerFn::validate:
      set_up_stage(RunningStage::validate, o.limit_val_batches, limit_name("limit_val_batches"));
      break;
    case TrainerFn::test:
      set_up_stage(RunningStage::test, o.limit_test_batches, "limit_test_batches");
      break;
    case TrainerFn::predict:
      set_up_stage(RunningStage::predict, o.limit_predict_batches, "limit_predict_batches");
      break;
  }
  require_step();
  if (fn_ != TrainerFn::fit && run.stages.begin()->second.loaders.empty())
    throw ConfigError(cat("[trainer.", name_of(fn_), "] there is no ", name_of(fn_),
                          " data. Does the data module have such a loader?"));
}

// Before a run folder is created. A fit only warns about a missing validation_step.
void RunSetup::require_step() const {
  const HookMask& overridden = ComponentAccess::overridden(*run_->state.model);
  if (fn_ == TrainerFn::validate && !overridden.has(Hook::validation_step)) throw StepNotOverridden("validation_step");
  if (fn_ == TrainerFn::test && !overridden.has(Hook::test_step)) throw StepNotOverridden("test_step");
  if (fn_ == TrainerFn::predict && !overridden.has(Hook::predict_step)) throw StepNotOverridden("predict_step");
}

void RunSetup::choose_checkpoint(const CheckpointChoice& choice, const LatestCheckpoints& latest) {
  // Rank 0 looks; the others use its result, which they must be able to read too.
  if (run_->state.is_global_zero()) find_checkpoint_for(choice, latest);
  if (run_->state.world_size() == 1) return;
  const auto follow = [&](std::optional<fs::path>& own) {
    const std::string path = run_->state.collectives().broadcast_text(own ? own->string() : std::string(), 0);
    own = path.empty() ? std::nullopt : std::optional<fs::path>(path);
  };
  follow(checkpoint_);
  follow(checkpoint_run_dir_);
}

void RunSetup::find_checkpoint_for(const CheckpointChoice& choice, const LatestCheckpoints& latest) {
  RunState& run = run_->state;
  if (!choice) {
    if (fn_ != TrainerFn::fit) return;
    for (const auto& callback : run.callbacks)
      if (!checkpoint_) checkpoint_ = callback->resume_candidate();
  } else if (*choice == "last" && latest.last) {
    checkpoint_ = latest.last;
  } else if (*choice == "best" && latest.best) {
    checkpoint_ = latest.best;
  } else if (*choice == "auto") {
    if (fn_ != TrainerFn::fit) throw ConfigError("[trainer.ckpt_path] auto is for fit; give last, best or a path.");
    const auto to_resume = find_run_to_resume(run.options, run.components);
    if (to_resume) lock_.emplace(to_resume->folder);
    if (auto found = to_resume ? find_resume_point(to_resume->folder) : std::nullopt) {
      if (!to_resume->passed_over.empty())
        run.print(cat("resume: ", to_resume->folder.filename().string(),
                      "; newer folders have no checkpoint of a fit: ", join(to_resume->passed_over)));
      checkpoint_ = std::move(found->path);
      content_ = std::move(found->content);
    } else {
      if (to_resume && run_name(run.options, run.components).version) restarted_run_dir_ = to_resume->folder;
      run.print("resume: there is no checkpoint to resume from; the run starts from its first step");
    }
  } else {
    checkpoint_ = find_checkpoint(*choice, run.options.default_root_dir, run_name(run.options, run.components),
                                  run.components.config_folder);
  }
  if (!checkpoint_) return;
  checkpoint_run_dir_ = run_folder_of(*checkpoint_);
  // A link is followed once, so that the report names the checkpoint itself.
  if (auto target = link_target(*checkpoint_)) checkpoint_ = std::move(target);
}

void RunSetup::prepare(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& choice,
                       const LatestCheckpoints& latest) {
  RunState& run = run_->state;
  Services& services = run_->services;
  if (!module) throw ConfigError("[trainer] there is no module. Name one under `model:` in the config.");
  if (module->in_run())
    throw Error(
        "[trainer] the module is already in a run. Give each run its own module, or wait for the first to end.");
  run.model = std::move(module);
  run.data = std::move(data);
  choose_hardware();
  services.finite.configure({.policy = run.options.on_nonfinite,
                             .check_every = run.options.check_every,
                             .logs_counters = !run.options.barebones,
                             .precision = &run.strategy->precision()});
  check_options();
  run.load.check();
  ComponentAccess::set_run(*run.model, &services.context);
  make_callbacks();
  make_loggers();
  choose_checkpoint(choice, latest);
  if (fn_ != TrainerFn::fit || !run.load.loads_loops()) checkpoint_run_dir_.reset();
  // Lock before reading: an active run there may remove it.
  if (checkpoint_run_dir_ && !lock_ && run.is_global_zero()) lock_.emplace(*checkpoint_run_dir_);
  if (checkpoint_ && !content_)
    content_ = read_checkpoint(
        *checkpoint_,
        fn_ == TrainerFn::fit && run.load.loads_optimizer() ? CheckpointParts::all : CheckpointParts::weights_and_state,
        run.load.verify);
  // Imported weights start a new run, wherever they are.
  if (content_ && content_->state.contains("imported")) run.load.weights_only = true;
  if (run.load.loads_loops()) resumed_run_dir_ = content_ ? checkpoint_run_dir_ : restarted_run_dir_;
  resumes_unfinished_ = resumed_run_dir_ && run.is_global_zero() && !is_marked_finished(*resumed_run_dir_);
  if (!resumed_run_dir_ || run.fast_dev_run() || run.options.barebones) lock_.reset();
  const std::optional<CheckpointContent>& content = content_;

  set_up_ = true;
  prepare_data();
  if (run.data.module) {
    // Before setup: statistics of the training data come from the checkpoint, not from this machine's files.
    load_from_checkpoint(LoadPhase::data);
    run.position.doing = "setup of the data module";
    run.data.module->setup(fn_);
    run.position.doing = nullptr;
  }
  run.each_callback(LogScope::forbidden, [&](Callback& c) { c.setup(services.context, fn_); });
  check_state_keys(run);
  run.position.doing = "setup of the module";
  run.model->setup(fn_);
  run.position.doing = "configure_model";
  run.model->configure_model();
  run.position.doing = nullptr;
  {
    // Hooks that create loaders see the run as it was when those of the checkpoint were created.
    const Progress before = run.counters;
    if (fn_ == TrainerFn::fit && run.load.loads_loops()) load_from_checkpoint(LoadPhase::loaders);
    set_up_data();
    run.counters = before;
  }
  if (content) {
    run.position.doing = "on_load_checkpoint of the module";
    run.model->on_load_checkpoint(content->state);
    run.position.doing = nullptr;
    load_weights(run, *content, *checkpoint_);
    if (fn_ != TrainerFn::fit || run.load.loads_loops()) {
      run.each_callback(LogScope::forbidden,
                        [&](Callback& c) { c.on_load_checkpoint(services.context, content->state); });
      load_from_checkpoint(LoadPhase::callbacks);
    }
  }
  check_same_on_all_ranks(run);
  run.strategy->attach(*run.model);
  make_replicas();
  if (run.options.channels_last) {
    to_channels_last(*run.model);
    for (const auto& [replica, context] : run.replicas) to_channels_last(*replica);
  }
  if (fn_ == TrainerFn::fit) {
    warn_of_recurrent_dropout(run);
    run.position.doing = "configure_optimizers";
    plan_optimizers(run, services);
    run.position.doing = nullptr;
  }
  create_run_folder();
  save_config();
  print_start();
  if (run.options.enable_autolog_hparams)
    for (const auto& logger : run.active_loggers) logger->log_hyperparams(run.model->hparams());
  if (content) {
    if (fn_ == TrainerFn::fit) restore_run(restoring());
    // Schedules of a run with other batches keep the lengths that they had.
    const auto& planned = run.plan.optimizers;
    if (std::any_of(planned.begin(), planned.end(),
                    [](const PlannedOptimizer& p) { return p.scheduler && p.scheduler->scheduler->pace() != 1; }))
      save_config();
    log::info(cat("checkpoint: ", *checkpoint_));
    content_.reset();
  }
  if (fn_ == TrainerFn::fit) run.strategy->start_training(*run.model, run.optimizers());
}

void RunSetup::start() {
  RunState& run = run_->state;
  run.position.setting_up = false;
  run.position.doing = nullptr;
  run_->services.consensus.start(run.collectives(), run.options.agree_every.value);
}

Restoring RunSetup::restoring() {
  resumed_ = {.path = *checkpoint_,
              .same_run = resumed_run_dir_ && !run_->state.run_dir.empty(),
              .unfinished = resumes_unfinished_};
  return {.run = run_->state,
          .services = run_->services,
          .content = *content_,
          .load = run_->state.load,
          .checkpoint = &resumed_};
}

void RunSetup::load_from_checkpoint(LoadPhase phase) {
  if (!content_) return;
  Restoring now = restoring();
  load_entries(phase, now, content_->state);
}

// Once per machine, or once in total; the others wait, so that setup finds what it needs.
void RunSetup::prepare_data() {
  RunState& run = run_->state;
  const ProcessPlace& place = run.strategy->place();
  const auto mine = [&](bool per_node) { return per_node ? place.local_rank == 0 : place.rank == 0; };
  if (run.data.module && mine(run.data.module->prepare_data_per_node())) run.data.module->prepare_data();
  if (mine(run.model->prepare_data_per_node())) run.model->prepare_data();
  run.collectives().barrier("prepare_data of the first process of each node");
}

// Copies of the module for the strategy's other devices, created and set up like the module.
void RunSetup::make_replicas() {
  RunState& run = run_->state;
  Services& services = run_->services;
  const size_t count = run.strategy->replicas_wanted();
  if (count == 0) return;
  if (!ComponentAccess::factory(*run.model))
    throw ConfigError(
        cat("[trainer.strategy] ", run.strategy->name(),
            " needs a copy of the module on each device, but the Trainer does not know how to create one: the module "
            "was passed as an object. Name it in the config (model:), or let the Trainer create it: "
            "trainer.fit<MyModule>(options, data), or make_component<LightningModule, MyModule>(options)."));
  // Their initial weights are overwritten: creating them must not advance the run's generators.
  const RngGuard rng(run.strategy->devices());
  std::vector<std::shared_ptr<LightningModule>> replicas;
  for (size_t i = 0; i < count; ++i) {
    auto replica = ComponentAccess::factory(*run.model)();
    auto context =
        std::make_unique<ReplicaContext>(run, services.context, services.logs, run.strategy->devices()[i + 1]);
    context->set_module(*replica);
    ComponentAccess::set_run(*replica, context.get());
    replicas.push_back(replica);
    run.replicas.emplace_back(replica, std::move(context));
    replica->setup(fn_);
    replica->configure_model();
  }
  run.strategy->attach_replicas(*run.model, replicas);
  if (fn_ == TrainerFn::fit && ComponentAccess::overridden(*run.model).has(Hook::on_train_epoch_end))
    log::warn("trainer.members_of_copies",
              cat("strategy ", run.strategy->name(),
                  " calls training_step on copies of the module: what it writes to members stays on the copy, and "
                  "on_train_epoch_end of the module sees only its own part. log() gathers values of all copies"));
}

ConfigNode options_node(TrainerOptions options) {
  Fields fields;
  options.fields(fields);
  return fields.write();
}

void RunSetup::save_config() {
  RunState& run = run_->state;
  ConfigNode written =
      run.components.config ? *run.components.config : ConfigNode::map({{"trainer", options_node(run.options)}});
  run.description.config = resolve_config(std::move(written), devices_, threads_, run.seed);
  if (fn_ == TrainerFn::fit)
    resolve_rates(run.description.config, run.plan, run.options.scale_lr == ScaleLr::none ? 1 : run.lr_factor);
  run.description.config_hash = content_hash(to_yaml(run.description.config));
  run.description.devices = devices_.describe();
  run.description.threads = threads_;
  if (run.run_dir.empty() || !run.is_global_zero()) return;
  const fs::path path = run.run_dir / "config.yaml", temporary = run.run_dir / ".config.yaml.tmp";
  std::error_code error;
  fs::remove(temporary, error);  // of a process that died; a fifo in its place would block
  std::ofstream file(temporary);
  file << to_yaml(run.description.config, {.comments = true});
  file.close();
  if (file) fs::rename(temporary, path, error);
  if (!file || error) log::warn("trainer.config_not_saved", cat("the config could not be written to ", path));
}

void RunSetup::print_start() {
  RunState& run = run_->state;
  run.print(cat("devices: ", devices_.describe(), " · strategy: ", run.strategy->name(),
                " · precision: ", run.strategy->precision().name(), " · threads: ", threads_,
                " · seed: ", run.seed ? std::to_string(*run.seed) : "none"));
  if (const std::string text = run.strategy->describe(); !text.empty()) log::info(cat("processes: ", text));
  std::vector<std::string> components;
  for (const auto& [stage, loaders] : run.stages) {
    int64_t samples = 0;
    bool known = true;
    for (const auto& loader : loaders.loaders) {
      known &= loader->samples().has_value();
      samples += loader->samples().value_or(0);
    }
    if (loaders.loaders.empty()) continue;
    const auto batches = loaders.total();
    components.push_back(cat(name_of(stage), " ", known ? std::to_string(samples) : "?", " samples, ",
                             batches ? std::to_string(*batches) : "?", " batches"));
  }
  run.print(cat("data: ", join(components, " · "), run.world_size() > 1 ? " (of rank 0)" : ""));
  run.print(run.run_dir.empty()
                ? run.options.barebones ? "run folder: none (barebones)" : "run folder: none (fast_dev_run)"
                : cat("run folder: ", run.run_dir));
}

namespace {

// What a user needs to know when memory runs out, in addition to LibTorch's message.
void explain_out_of_memory(const RunState& run) {
  const auto mib = [](int64_t bytes) { return cat(bytes >> 20, " MiB"); };
  for (const at::Device& device : run.strategy->devices())
    if (const auto memory = device_memory(device))
      log::error(cat("out of memory: tensors hold ", mib(memory->allocated), " of ", device.str(), " (at most ",
                     mib(memory->peak_allocated), "), and the allocator keeps ", mib(memory->reserved)));
  // Before the loops there has been no batch yet.
  const bool evaluates = !run.position.failed_in.empty() || (run.fn != TrainerFn::fit && !run.position.setting_up);
  const bool trains = run.counters.batches_total.ready > 0;
  // What is set already is no advice.
  const std::string precision = run.strategy->precision().name();
  const bool is_whole = precision == "32-true" || precision == "64-true";
  const bool is_true_half = precision == "16-true" || precision == "bf16-true";
  if (!evaluates && !trains)
    return log::error(cat("to use less memory: a smaller model", is_true_half ? "" : "; precision: bf16-true",
                          ". Other processes may hold memory of the device"));
  const std::string_view mixed = is_whole ? "; precision: bf16-mixed or 16-mixed" : "";
  // An evaluation has no gradients, and its own batches.
  if (evaluates)
    return log::error(cat("to use less memory: a smaller evaluation batch, such as data.eval_batch_size", mixed,
                          "; outputs not kept on the device"));
  log::error(cat("to use less memory: a smaller batch with accumulate_grad_batches", mixed,
                 "; activation checkpointing (docs/memory.md)"));
}

// A failure while a failure is handled is reported, and does not replace it.
template <class Function>
void log_exceptions(std::string_view when, Function function) noexcept {
  try {
    function();
  } catch (const std::exception& later) {
    const std::string_view text = later.what();
    log::error(cat(when, ": ", text.substr(0, text.find('\n'))));  // a log line is one line
  } catch (...) {
    log::error(cat(when, ": an exception of unknown type"));
  }
}

}  // namespace

void RunSetup::on_exception(const std::exception& error) noexcept {
  RunState& run = run_->state;
  Services& services = run_->services;
  if (!run.model || !run.strategy) return;
  constexpr std::string_view kWhen = "while handling an earlier error";
  const bool in_loops = run.counters.batches_total.ready > 0;
  run.failed_alone = run.world_size() > 1 && !dynamic_cast<const Interrupted*>(&error);
  // Before the loops our own errors say where they come from.
  const bool in_hook = run.in_hook() && !dynamic_cast<const Error*>(&error);
  if ((in_loops || !run.position.failed_in.empty() || in_hook) && !dynamic_cast<const Interrupted*>(&error))
    log_exceptions(kWhen, [&] {
      log::error(
          cat("the run failed in ", run.position.failed_in.empty() ? run.place_of_failure() : run.position.failed_in));
      // A strategy of several devices places the module's tensors itself.
      if (run.strategy->devices().size() == 1)
        if (const auto layers = failed_layers(error.what(), *run.model, run.device())) log::error(*layers);
      if (const auto hint = hint_for(error.what())) log::error(cat("what may help: ", *hint));
    });
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) log_exceptions(kWhen, [&] { explain_out_of_memory(run); });
  if (fn_ == TrainerFn::fit && in_loops) log_exceptions(kWhen, [&] { rewind_to_batch_start(run, services); });
  log_exceptions(kWhen, [&] { services.rows.settle(/*and_act=*/false); });
  if (set_up_) {
    log_exceptions(kWhen, [&] { services.checkpoints.before_writes(); });
    for (const auto& callback : run.callbacks)
      log_exceptions(kWhen, [&] { callback->on_exception(services.context, error); });
    if (run.data.module) log_exceptions(kWhen, [&] { run.data.module->on_exception(error); });
  }
  log_exceptions(kWhen, [&] { services.checkpoints.act_on_requests(); });
  log_exceptions(kWhen, [&] { services.checkpoints.wait_for_save(); });
}

void RunSetup::finish(RunStatus status) noexcept {
  if (finished_) return;
  finished_ = true;
  RunState& run = run_->state;
  Services& services = run_->services;
  constexpr std::string_view kWhen = "during teardown";
  for (const auto& logger : started_loggers_) logger->finalize(status);
  if (set_up_) {
    if (run.data.module) log_exceptions(kWhen, [&] { run.data.module->teardown(fn_); });
    for (const auto& callback : run.callbacks)
      log_exceptions(kWhen, [&] { callback->teardown(services.context, fn_); });
    log_exceptions(kWhen, [&] { run.model->teardown(fn_); });
    for (const auto& [replica, context] : run.replicas) log_exceptions(kWhen, [&] { replica->teardown(fn_); });
  }
  if (run.strategy && run.failed_alone) run.strategy->abandon();
  if (run.strategy) run.strategy->teardown();
  if (run.model) ComponentAccess::set_run(*run.model, nullptr);
  for (const auto& [replica, context] : run.replicas) ComponentAccess::set_run(*replica, nullptr);
  current_device_.reset();
  lock_.reset();
}

}  // namespace fulgur::detail
