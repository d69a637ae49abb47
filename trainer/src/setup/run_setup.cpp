#include "setup/run_setup.h"

#include <algorithm>
#include <fstream>

#include "checkpointing/resume.h"
#include "checkpointing/run_checkpoint.h"
#include "fulgur/core/log.h"
#include "fulgur/core/rng.h"
#include "fulgur/core/text.h"
#include "fulgur/core/yaml_writer.h"
#include "loops/rewind.h"
#include "process/run_folder.h"
#include "run/memory_format.h"
#include "run/replica_context.h"
#include "setup/failure_report.h"
#include "setup/make_callbacks.h"
#include "setup/plan_optimizers.h"
#include "setup/rank_consistency.h"
#include "setup/recurrent_dropout.h"
#include "setup/stage_loaders.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

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
  const Hardware& hardware = hardware_.emplace(choose_hardware(run));
  services.finite.configure({.policy = run.options.on_nonfinite,
                             .check_every = run.options.check_every,
                             .logs_counters = !run.options.barebones,
                             .precision = &run.strategy->precision()});
  check_options();
  run.load.check();
  ComponentAccess::set_run(*run.model, &services.context);
  make_callbacks(run, services.logs);
  make_loggers(run);
  ResumePlan& resume = resume_.emplace(plan_resume(run, hardware, choice, latest));
  set_up_ = true;
  const LoadedData loaded = load_data(resume);
  const Plan plan = plan_training(loaded, resume);
  const RunFolder folder = create_run_folder(plan, resume);
  restore(folder, resume);
  if (run.fn == TrainerFn::fit) run.strategy->start_training(*run.model, services.context.optimizers());
}

LoadedData RunSetup::load_data(ResumePlan& resume) {
  RunState& run = run_->state;
  Services& services = run_->services;
  prepare_data();
  if (run.data.module) {
    // Before setup: statistics of the training data come from the checkpoint, not from this machine's files.
    resume.load(LoadPhase::data, run, services);
    run.position.doing = "setup of the data module";
    run.data.module->setup(run.fn);
    run.position.doing = nullptr;
  }
  run.each_callback(LogScope::forbidden, [&](Callback& c) { c.setup(services.context, run.fn); });
  check_state_keys(run);
  run.position.doing = "setup of the module";
  run.model->setup(run.fn);
  run.position.doing = "configure_model";
  run.model->configure_model();
  run.position.doing = nullptr;
  // Hooks that create loaders see the run as it was when the checkpoint's loaders were created.
  const Progress before = run.counters;
  if (run.fn == TrainerFn::fit && run.load.loads_loops()) resume.load(LoadPhase::loaders, run, services);
  set_up_data(run);
  run.counters = before;
  return {};
}

Plan RunSetup::plan_training(const LoadedData&, ResumePlan& resume) {
  RunState& run = run_->state;
  Services& services = run_->services;
  if (resume.content) {
    run.position.doing = "on_load_checkpoint of the module";
    run.model->on_load_checkpoint(resume.content->state);
    run.position.doing = nullptr;
    load_weights(run, *resume.content, *resume.checkpoint);
    if (run.fn != TrainerFn::fit || run.load.loads_loops()) {
      run.each_callback(LogScope::forbidden,
                        [&](Callback& c) { c.on_load_checkpoint(services.context, resume.content->state); });
      resume.load(LoadPhase::callbacks, run, services);
    }
  }
  check_same_on_all_ranks(run);
  run.strategy->attach(*run.model);
  make_replicas();
  if (run.options.channels_last) {
    to_channels_last(*run.model);
    for (const auto& [replica, context] : run.replicas) to_channels_last(*replica);
  }
  if (run.fn == TrainerFn::fit) {
    warn_of_recurrent_dropout(run);
    run.position.doing = "configure_optimizers";
    plan_optimizers(run, services);
    run.position.doing = nullptr;
  }
  return {};
}

void RunSetup::restore(const RunFolder&, ResumePlan& resume) {
  RunState& run = run_->state;
  save_config();
  print_start();
  if (run.options.enable_autolog_hparams)
    for (const auto& logger : run.active_loggers) logger->log_hyperparams(run.model->hparams());
  if (!resume.content) return;
  if (run.fn == TrainerFn::fit) restore_run(resume.restoring(run, run_->services));
  // Schedules of a run whose batches have changed keep their original lengths.
  const auto& planned = run.plan.optimizers;
  if (std::any_of(planned.begin(), planned.end(),
                  [](const PlannedOptimizer& p) { return p.scheduler && p.scheduler->scheduler->pace() != 1; }))
    save_config();
  log::info(cat("checkpoint: ", *resume.checkpoint));
  resume.content.reset();
}

RunFolder RunSetup::create_run_folder(const Plan&, ResumePlan& resume) {
  RunState& run = run_->state;
  RunName name;
  if (!run.active_loggers.empty())
    name = {.name = run.active_loggers.front()->run_name().value_or(kDefaultRunName),
            .version = run.active_loggers.front()->run_version()};
  for (const auto& logger : run.active_loggers) {
    const auto other = logger->run_name();
    const auto other_version = logger->run_version();
    if ((other && *other != name.name) || (other_version && other_version != name.version))
      throw ConfigError(
          "[trainer.logger] loggers request different run folders; only the name and version of the first logger "
          "are used. Set them in only one logger.");
  }
  // A trial run leaves nothing behind.
  if (run.fast_dev_run() || run.options.barebones) return {};
  // Rank 0 chooses and writes the folder.
  if (run.is_global_zero()) {
    // An evaluation reads the checkpoints of the version, and has its own folder.
    if (run.fn != TrainerFn::fit && name.version && is_taken(run.options.default_root_dir, name)) name.version.reset();
    run.run_dir = resume.run_dir ? *resume.run_dir : take_run_folder(run.options.default_root_dir, name);
    run.run_dir = fs::absolute(run.run_dir).lexically_normal();
    if (!resume.lock) resume.lock.emplace(run.run_dir);
    std::error_code error;
    if (run.fn == TrainerFn::fit && run.checkpoints_allowed)
      fs::create_directory(checkpoint_folder_of(run.run_dir), error);
  }
  run.run_dir = run.collectives().broadcast_text(run.run_dir.string(), 0);
  if (!run.is_global_zero()) {
    if (run.run_dir.empty()) return {};
    std::error_code error;
    fs::create_directories(run.run_dir, error);
    log::write_to(run.run_dir / cat("rank_", run.rank(), ".log"));
    return {run.run_dir};
  }
  std::optional<int64_t> resume_step;
  if (resume.run_dir) {
    // No files are kept of a fit that begins again.
    resume_step = resume.content ? resume.content->state.at("progress").at("global_step").as_int() : -1;
    resume.load(LoadPhase::loggers, run, run_->services);
    remove_leftovers(run_->services.context.checkpoint_dir());
    unmark_finished(run.run_dir);
  }
  for (const auto& logger : run.active_loggers) {
    logger->start(run.run_dir, resume_step);
    started_loggers_.push_back(logger);
  }
  return {run.run_dir};
}

void RunSetup::check_options() const {
  const RunState& run = run_->state;
  if (run.options.has_no_limit)
    log::warn("trainer.no_limit",
              cat("neither max_epochs nor max_steps nor max_time is set; training stops after ",
                  *run.options.epoch_limit, " epochs. Set one of them (max_epochs: -1 for no limit)"));
  run.options.check(run.fn, run.model->automatic_optimization());
}

void RunSetup::start() {
  RunState& run = run_->state;
  run.position.setting_up = false;
  run.position.doing = nullptr;
  run_->services.consensus.start(run.collectives(), run.options.agree_every.value);
}

// Called once per machine, or once in total; the other processes wait, so that setup finds the data.
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
    replica->setup(run.fn);
    replica->configure_model();
  }
  run.strategy->attach_replicas(*run.model, replicas);
  if (run.fn == TrainerFn::fit && ComponentAccess::overridden(*run.model).has(Hook::on_train_epoch_end))
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
  run.description.config = resolve_config(std::move(written), hardware_->devices, hardware_->threads, run.seed);
  if (run.fn == TrainerFn::fit)
    resolve_rates(run.description.config, run.plan, run.options.scale_lr == ScaleLr::none ? 1 : run.lr_factor);
  run.description.config_hash = content_hash(to_yaml(run.description.config));
  run.description.devices = hardware_->devices.describe();
  run.description.threads = hardware_->threads;
  if (run.run_dir.empty() || !run.is_global_zero()) return;
  const fs::path path = run.run_dir / "config.yaml", temporary = run.run_dir / ".config.yaml.tmp";
  std::error_code error;
  fs::remove(temporary, error);  // a process that died may have left it; a fifo in its place would block
  std::ofstream file(temporary);
  file << to_yaml(run.description.config, {.comments = true});
  file.close();
  if (file) fs::rename(temporary, path, error);
  if (!file || error) log::warn("trainer.config_not_saved", cat("the config could not be written to ", path));
}

void RunSetup::print_start() {
  RunState& run = run_->state;
  run.print(cat("devices: ", hardware_->devices.describe(), " · strategy: ", run.strategy->name(),
                " · precision: ", run.strategy->precision().name(), " · threads: ", hardware_->threads,
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
                             batches ? std::to_string(*batches) : "?", batches == 1 ? " batch" : " batches"));
  }
  run.print(cat("data: ", join(components, " · "), run.world_size() > 1 ? " (of rank 0)" : ""));
  run.print(run.run_dir.empty()
                ? run.options.barebones ? "run folder: none (barebones)" : "run folder: none (fast_dev_run)"
                : cat("run folder: ", run.run_dir));
}

namespace {

// A failure during the handling of a failure is reported, and does not replace the first one.
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
  // Before the loops, Fulgur's own errors say where they come from.
  const bool in_hook = run.in_hook() && !dynamic_cast<const Error*>(&error);
  if ((in_loops || !run.position.failed_in.empty() || in_hook) && !dynamic_cast<const Interrupted*>(&error))
    log_exceptions(kWhen, [&] { report_failure(run, error); });
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) log_exceptions(kWhen, [&] { explain_out_of_memory(run); });
  if (run.fn == TrainerFn::fit && in_loops) log_exceptions(kWhen, [&] { rewind_to_batch_start(run, services); });
  log_exceptions(kWhen, [&] { services.rows.settle(/*and_act=*/false); });
  if (set_up_) {
    log_exceptions(kWhen, [&] { services.checkpoints.before_writes(); });
    for (const auto& callback : run.callbacks)
      log_exceptions(kWhen, [&] { callback->on_exception(services.context, error); });
    if (run.data.module) log_exceptions(kWhen, [&] { run.data.module->on_exception(error); });
  }
  if (run.step.progress == StepProgress::under_way && services.checkpoints.has_requests())
    log_exceptions(kWhen, [&] {
      log::error("no checkpoint is written: the optimizer's step failed and may have changed the weights in part");
      services.checkpoints.discard_requests("the optimizer's step failed");
    });
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
    if (run.data.module) log_exceptions(kWhen, [&] { run.data.module->teardown(run.fn); });
    for (const auto& callback : run.callbacks)
      log_exceptions(kWhen, [&] { callback->teardown(services.context, run.fn); });
    log_exceptions(kWhen, [&] { run.model->teardown(run.fn); });
    for (const auto& [replica, context] : run.replicas) log_exceptions(kWhen, [&] { replica->teardown(run.fn); });
  }
  if (run.strategy && run.failed_alone) run.strategy->abandon();
  if (run.strategy) run.strategy->teardown();
  if (run.model) ComponentAccess::set_run(*run.model, nullptr);
  for (const auto& [replica, context] : run.replicas) ComponentAccess::set_run(*replica, nullptr);
  if (hardware_) hardware_->current_device.reset();
  if (resume_) resume_->lock.reset();
}

}  // namespace fulgur::detail
