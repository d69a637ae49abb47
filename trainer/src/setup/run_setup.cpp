#include "setup/run_setup.h"

#include <algorithm>
#include <fstream>

#include "checkpointing/resume.h"
#include "checkpointing/run_checkpoint.h"
#include "context/replica_context.h"
#include "failures/failure_report.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "logging/logger_thread.h"
#include "loops/rewind.h"
#include "process/run_folder.h"
#include "run/all_loggers.h"
#include "run/batch_sizes.h"
#include "run/memory_format.h"
#include "run/rank_role.h"
#include "setup/profile_report.h"
#include "setup/rank_consistency.h"
#include "setup/setup_steps.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

namespace {

// After the data is known: without any, that error comes alone.
void warn_of_no_limit(const ResolvedOptions& options) {
  if (options.has_no_limit)
    log::warn("trainer.no_limit", cat("neither max_epochs nor max_steps nor max_time is set; training stops after ",
                                      *options.epoch_limit, " epochs. Set one of them (max_epochs: -1 for no limit)"));
}

}  // namespace

void RunSetup::prepare(std::shared_ptr<LightningModule> module, DataSource data, const CheckpointChoice& choice,
                       const LatestCheckpoints& latest) {
  if (!module) throw ConfigError("[trainer] there is no module. Name one under `model:` in the config.");
  if (module->in_run())
    throw Error(
        "[trainer] the module is already in a run. Give each run its own module, or wait for the first to end.");
  run_.model = std::move(module);
  run_.data = std::move(data);
  const Hardware& hardware = hardware_.emplace(choose_hardware(run_));
  services_.finite.configure({.policy = run_.options.on_nonfinite,
                              .check_every = run_.options.check_every,
                              .logs_counters = !run_.options.barebones,
                              .precision = &run_.strategy->precision(),
                              .strategy = run_.strategy.get()});
  services_.logs.count_training(role_of(*run_.strategy).counts);
  check_options();
  run_.load.check();
  run_.components.pretrained.check();
  ComponentAccess::set_run(*run_.model, &services_.context);
  make_callbacks(run_, services_.logs);
  make_loggers(run_);
  ResumePlan& resume = resume_.emplace(plan_resume(run_, hardware, choice, latest));
  set_up_ = true;
  load_data(resume);
  const bool resumes = run_.fn == TrainerFn::fit && resume.content && run_.load.loads_loops();
  choose_cpu_work(run_, resumes && !run_.load.allow_config_change ? &resume.content->state : nullptr, *hardware_);
  plan_training(resume);
  choose_run_folder(resume);
  restore(resume);
  start_profiler(run_);
  prepare_weights();
}

void RunSetup::prepare_weights() {
  if (run_.fn == TrainerFn::fit) {
    run_.strategy->start_training(*run_.model, services_.context.optimizers());
    const std::string& writer = run_.options.checkpoint_writer.class_path();
    if (run_.strategy->saves_parts() && writer != TrainerOptions().checkpoint_writer.class_path())
      throw ConfigError(
          cat("[trainer.checkpoint_writer] with state_dict_type: sharded, each rank writes its part of a "
              "checkpoint, which ",
              writer,
              " cannot do. Use checkpoint_writer: folder, or "
              "state_dict_type: full."));
  } else if (run_.device().is_cpu() && run_.replicas.empty() && !run_.strategy->divides_parameters() &&
             run_.strategy->precision().name() == "32-true") {
    // Nothing computes gradients in this run.
    inference_weights_.emplace(*run_.model);
  }
}

void RunSetup::load_data(ResumePlan& resume) {
  prepare_data();
  if (run_.data.module && run_.data.set_up_for != run_.fn) {
    // Before setup: statistics of the training data come from the checkpoint, not from this machine's files.
    resume.load(LoadPhase::data, run_, services_);
    run_.position.during("setup of the data module", [&] { run_.data.module->setup(run_.fn); });
  }
  run_.each_callback(LogScope::forbidden, "setup", [&](Callback& c) { c.setup(services_.context, run_.fn); });
  check_state_keys(run_);
  run_.position.during("setup of the module", [&] { run_.model->setup(run_.fn); });
  run_.position.during("configure_model", [&] { run_.model->configure_model(); });
  // Hooks that create loaders see the run as it was when the checkpoint's loaders were created.
  const Progress before = run_.counters;
  if (run_.fn == TrainerFn::fit && run_.load.loads_loops()) resume.load(LoadPhase::loaders, run_, services_);
  set_up_loaders(run_, resume.content.has_value());
  run_.counters = before;
}

void RunSetup::plan_training(ResumePlan& resume) {
  if (resume.content) {
    run_.position.during("on_load_checkpoint of the module",
                         [&] { run_.model->on_load_checkpoint(resume.content->state); });
    adapt_checkpoint(run_, *resume.content);
    load_weights(run_, *resume.content, *resume.checkpoint);
    if (run_.fn != TrainerFn::fit || run_.load.loads_loops()) {
      run_.each_callback(LogScope::forbidden, "on_load_checkpoint",
                         [&](Callback& c) { c.on_load_checkpoint(services_.context, resume.content->state); });
      resume.load(LoadPhase::callbacks, run_, services_);
    }
  } else {
    load_pretrained(run_);
  }
  add_adapters(run_);
  check_same_on_all_ranks(run_);
  run_.strategy->attach(*run_.model);
  make_replicas();
  if (run_.options.channels_last) {
    to_channels_last(*run_.model);
    for (const auto& [replica, context] : run_.replicas) to_channels_last(*replica);
  }
  if (run_.fn == TrainerFn::fit) {
    warn_of_no_limit(run_.options);
    warn_of_unlinked_options(run_);
    warn_of_recurrent_dropout(run_);
    run_.position.during("configure_optimizers", [&] { plan_optimizers(run_, services_); });
  }
}

void RunSetup::restore(ResumePlan& resume) {
  describe_run();
  print_start();
  // A checkpoint that is refused leaves the files of its run as they are.
  if (resume.content && run_.fn == TrainerFn::fit) restore_run(resume.restoring(run_, services_));
  open_run_folder(resume);
  describe_run();  // schedules of a run whose batches have changed keep their original lengths
  save_config();
  if (run_.options.enable_autolog_hparams)
    for_all_loggers(run_.log_targets.size(),
                    [&](size_t i) { run_.log_targets[i]->log_hyperparams(run_.model->hparams()); });
  if (resume.content) {
    log::info(cat("checkpoint: ", *resume.checkpoint));
    warn_of_other_data(run_, resume.content->state);
  }
  resume.content.reset();
}

void RunSetup::choose_run_folder(ResumePlan& resume) {
  RunName name;
  if (!run_.active_loggers.empty()) name = run_name_of(*run_.active_loggers.front());
  for (const auto& logger : run_.active_loggers) {
    const auto other = logger->run_name();
    const auto other_version = logger->run_version();
    const bool has_other_name = other && *other != name.name && *other != kDefaultRunName;
    if (has_other_name || (other_version && other_version != name.version))
      throw ConfigError(
          "[trainer.logger] loggers request different run folders; only the name and version of the first logger "
          "are used. Set them in only one logger.");
  }
  // A trial run leaves nothing behind.
  if (run_.fast_dev_run() || run_.options.barebones) return;
  // Rank 0 chooses and writes the folder.
  if (run_.is_global_zero()) {
    // An evaluation reads the checkpoints of the version, and has its own folder.
    if (run_.fn != TrainerFn::fit && name.version && is_taken(run_.options.default_root_dir, name))
      name.version.reset();
    run_.run_dir = resume.run_dir ? *resume.run_dir : take_run_folder(run_.options.default_root_dir, name);
    run_.run_dir = fs::absolute(run_.run_dir).lexically_normal();
    made_folder_ = !resume.run_dir;
    if (!resume.lock) resume.lock.emplace(run_.run_dir);
    std::error_code error;
    if (run_.fn == TrainerFn::fit && run_.checkpoints_allowed)
      fs::create_directory(checkpoint_folder_of(run_.run_dir), error);
  }
  run_.run_dir = run_.collectives().broadcast_text(run_.run_dir.string(), 0);
  if (!run_.is_global_zero()) {
    if (run_.run_dir.empty()) return;
    // Beside rank 0 the folder is there, unless a run that could not begin has removed it.
    std::error_code error;
    if (run_.strategy->place().node_rank > 0) fs::create_directories(run_.run_dir, error);
    log::write_to(run_.run_dir / cat("rank_", run_.rank(), ".log"));
  }
}

void RunSetup::open_run_folder(ResumePlan& resume) {
  if (!run_.is_global_zero() || run_.run_dir.empty()) return;
  std::optional<int64_t> resume_step;
  if (resume.run_dir) {
    // No files are kept of a fit that begins again.
    resume_step =
        !resume.begins_again ? resume.content->state.at(checkpoint_keys::kProgress).at("global_step").as_int() : -1;
    if (!resume.begins_again) resume.load(LoadPhase::loggers, run_, services_);
    remove_leftovers(services_.context.checkpoint_dir());
    unmark_ended(run_.run_dir);
  }
  owns_folder_ = true;
  for (const auto& logger : run_.log_targets) {
    logger->start(run_.run_dir, resume_step);
    started_loggers_.push_back(logger);
  }
}

void RunSetup::check_options() const {
  run_.options.check(run_.fn, run_.model->automatic_optimization());
  const OnNonFinite policy = run_.options.on_nonfinite;
  const bool raises = policy == OnNonFinite::raise || policy == OnNonFinite::off;
  if (run_.fn == TrainerFn::fit && run_.strategy->steps_apart() && run_.world_size() > 1 && !raises)
    throw ConfigError(cat("[trainer.on_nonfinite] ", enum_text(policy),
                          " needs gradients that are the same on all "
                          "ranks, and with local_sgd they differ. Use on_nonfinite: raise or off."));
}

void RunSetup::start() {
  run_.position.setting_up = false;
  run_.position.doing = nullptr;
  services_.consensus.start(run_.collectives(), run_.options.agree_every.value);
}

// Called once per machine, or once in total; the other processes wait, so that setup finds the data.
void RunSetup::prepare_data() {
  const ProcessPlace& place = run_.strategy->place();
  const auto mine = [&](bool per_node) { return per_node ? place.local_rank == 0 : place.rank == 0; };
  const bool prepared = run_.data.set_up_for == run_.fn;
  if (run_.data.module && !prepared && mine(run_.data.module->prepare_data_per_node()))
    run_.data.module->prepare_data();
  if (mine(run_.model->prepare_data_per_node())) run_.model->prepare_data();
  run_.collectives().barrier("prepare_data of the first process of each node");
}

// Copies of the module for the strategy's other devices, created and set up like the module.
void RunSetup::make_replicas() {
  const size_t count = run_.strategy->replicas_wanted();
  if (count == 0) return;
  if (!ComponentAccess::factory(*run_.model))
    throw ConfigError(
        cat("[trainer.strategy] ", run_.strategy->name(),
            " needs a copy of the module on each device, but the Trainer does not know how to create one: the module "
            "was passed as an object. Name it in the config (model:), or let the Trainer create it: "
            "trainer.fit<MyModule>(options, data), or make_component<LightningModule, MyModule>(options)."));
  // Their initial weights are overwritten: creating them must not advance the run's generators.
  const RngGuard rng(run_.strategy->devices());
  std::vector<std::shared_ptr<LightningModule>> replicas;
  for (size_t i = 0; i < count; ++i) {
    auto replica = ComponentAccess::factory(*run_.model)();
    auto context = std::make_unique<ReplicaContext>(run_, services_.context, services_.logs, services_.metrics,
                                                    run_.strategy->devices()[i + 1]);
    context->set_module(*replica);
    ComponentAccess::set_run(*replica, context.get());
    replicas.push_back(replica);
    run_.replicas.emplace_back(replica, std::move(context));
    replica->setup(run_.fn);
    replica->configure_model();
    add_adapters_to_copy(run_, *replica);
  }
  run_.strategy->attach_replicas(*run_.model, replicas);
  if (run_.fn == TrainerFn::fit && ComponentAccess::overridden(*run_.model).has(Hook::on_train_epoch_end))
    log::warn("trainer.members_of_copies",
              cat("strategy ", run_.strategy->name(),
                  " calls training_step on copies of the module: what it writes to members stays on the copy, and "
                  "on_train_epoch_end of the module sees only its own part. log() gathers values of all copies"));
}

void RunSetup::describe_run() {
  ConfigNode written = run_.components.config
                           ? *run_.components.config
                           : ConfigNode::map({{"trainer", FieldTraits<TrainerOptions>::write(run_.options)}});
  run_.description.config =
      resolve_config(std::move(written), hardware_->devices, hardware_->threads, hardware_->matmul, run_.seed);
  if (run_.fn == TrainerFn::fit)
    resolve_rates(run_.description.config, run_.plan, run_.options.scale_lr == ScaleLr::none ? 1 : run_.lr_factor);
  run_.description.config_hash = content_hash(to_yaml(run_.description.config));
  run_.description.devices = hardware_->devices.describe();
  run_.description.threads = hardware_->threads;
}

void RunSetup::save_config() {
  if (run_.run_dir.empty() || !run_.is_global_zero()) return;
  const fs::path path = run_.run_dir / run_layout::kConfig, temporary = run_.run_dir / ".config.yaml.tmp";
  std::error_code error;
  fs::remove(temporary, error);  // a process that died may have left it; a fifo in its place would block
  std::ofstream file(temporary);
  file << run_layout::kVerbLine << name_of(run_.fn) << '\n';
  file << to_yaml(run_.description.config, {.comments = true});
  file.close();
  if (file) fs::rename(temporary, path, error);
  if (!file || error) log::warn("trainer.config_not_saved", cat("the config could not be written to ", path));
}

// Small data: a user of Lightning expects values of the last step or of one epoch.
void RunSetup::print_long_rows() {
  const auto train = run_.stages.find(RunningStage::train);
  if (run_.fn != TrainerFn::fit || run_.active_loggers.empty() || train == run_.stages.end()) return;
  const int64_t steps = steps_of_epochs(run_, 1, train->second.total()).value_or(0);
  if (steps == 0 || steps >= run_.options.log_every_n_steps || run_.options.max_epochs == 1) return;
  run_.print(cat("rows of step values: every ", run_.options.log_every_n_steps, " steps; an epoch has ", steps,
                 ", so their means, which are also what is displayed, are of several epochs. "
                 "trainer.log_every_n_steps: ",
                 steps, " writes one for each"));
}

void RunSetup::print_start() {
  if (run_.components.is_trial) return;
  run_.print(cat("devices: ", hardware_->devices.describe(), " · strategy: ", run_.strategy->name(),
                 " · precision: ", run_.strategy->precision().name(), " · threads: ", hardware_->threads,
                 run_.device().is_cuda() ? "" : cat(" · matrix products: ", enum_text(hardware_->matmul)),
                 " · seed: ", run_.seed ? std::to_string(*run_.seed) : "none"));
  if (const std::string text = run_.strategy->describe(); !text.empty()) log::info(cat("processes: ", text));
  std::vector<std::string> components;
  for (const auto& [stage, loaders] : run_.stages) {
    int64_t samples = 0, full_batches = 0;
    bool known = true;
    for (const auto& loader : loaders.loaders) {
      known &= loader->samples().has_value();
      const int64_t here = loader->samples().value_or(0), size = std::max<int64_t>(loader->batch_size(), 1);
      samples += here;
      full_batches += (here + size - 1) / size;
    }
    if (loaders.loaders.empty()) continue;
    const auto batches = loaders.total();
    components.push_back(cat(name_of(stage), " ", known ? std::to_string(samples) : "?", " samples, ",
                             batches ? std::to_string(*batches)
                             : known ? cat("about ", full_batches)  // a stream, which ends where its data end
                                     : std::string("?"),
                             batches == 1 ? " batch" : " batches"));
  }
  run_.print(cat("data: ", join(components, " · "), run_.world_size() > 1 ? " (of rank 0)" : ""));
  print_long_rows();
  run_.print(run_.run_dir.empty() ? run_.options.barebones ? "run folder: none (barebones)"
                                    : run_.is_profile()    ? "run folder: none (profile)"
                                                           : "run folder: none (fast_dev_run)"
                                  : cat("run folder: ", run_.run_dir));
}

namespace {

// A failure during the handling of a failure is reported, and does not replace the first one.
template <class Function>
void log_exceptions(std::string_view when, Function function) noexcept {
  try {
    function();
  } catch (const std::exception& later) {
    log::error(cat(when, ": ", first_line(later.what())));  // a log line is one line
  } catch (...) {
    log::error(cat(when, ": an exception of unknown type"));
  }
}

}  // namespace

void RunSetup::on_exception(const std::exception& error) noexcept {
  if (!run_.model || !run_.strategy) return;
  constexpr std::string_view kWhen = "while handling an earlier error";
  const bool out_of_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
  const bool in_loops = run_.counters.batches_total.ready > 0;
  const bool in_first_read = out_of_memory && run_.position.reading;
  // A signal before the setup ends the meeting of the ranks, which are not connected yet.
  const bool is_on_all_ranks =
      (set_up_ && dynamic_cast<const Interrupted*>(&error)) || (in_loops && dynamic_cast<const MonitorError*>(&error));
  run_.failed_alone = run_.world_size() > 1 && !is_on_all_ranks;
  // Before the loops, Fulgur's own errors say where they come from.
  const bool in_hook = run_.in_hook() && !dynamic_cast<const Error*>(&error);
  // That a trial runs out of memory is its result.
  const bool is_reported = !(run_.components.is_trial && out_of_memory) && !dynamic_cast<const Interrupted*>(&error);
  if ((in_loops || !run_.position.failed_in.empty() || in_hook || in_first_read) && is_reported)
    log_exceptions(kWhen, [&] { report_failure(run_, error); });
  if (out_of_memory && is_reported) log_exceptions(kWhen, [&] { explain_out_of_memory(run_); });
  if (run_.fn == TrainerFn::fit && in_loops) log_exceptions(kWhen, [&] { rewind_to_batch_start(run_, services_); });
  log_exceptions(kWhen, [&] { services_.rows.settle(/*and_act=*/false); });
  if (set_up_) {
    log_exceptions(kWhen, [&] { services_.checkpoints.before_writes(); });
    for (const auto& callback : run_.callbacks)
      log_exceptions(kWhen, [&] { callback->on_exception(services_.context, error); });
    if (run_.validation.callbacks_before) run_.validation.callbacks_before->restore(/*that_write_checkpoints=*/false);
    if (run_.data.module) log_exceptions(kWhen, [&] { run_.data.module->on_exception(error); });
  }
  if (run_.step.progress == StepProgress::under_way && services_.checkpoints.has_requests())
    log_exceptions(kWhen, [&] {
      log::error("no checkpoint is written: the optimizer's step failed and may have changed some of the weights");
      services_.checkpoints.discard_requests("the optimizer's step failed");
    });
  log_exceptions(kWhen, [&] { services_.checkpoints.act_on_requests(); });
  log_exceptions(kWhen, [&] { services_.checkpoints.wait_for_save(); });
  if (run_.fn == TrainerFn::fit && owns_folder_ && !dynamic_cast<const Interrupted*>(&error))
    mark_failed(run_.run_dir, error);
  // The logs of other ranks, which are in the folder, have the same error as this one.
  discards_folder_ = made_folder_ && !in_loops && dynamic_cast<const ConfigError*>(&error);
}

std::vector<std::string> RunSetup::logger_losses() const {
  std::vector<std::string> losses;
  for (const auto& logger : started_loggers_)
    if (const auto* const thread = dynamic_cast<const LoggerThread*>(logger.get()))
      if (std::string lost = thread->losses(); !lost.empty()) losses.push_back(std::move(lost));
  return losses;
}

void RunSetup::finish(RunStatus status) noexcept {
  if (finished_) return;
  finished_ = true;
  constexpr std::string_view kWhen = "during teardown";
  // Local files are complete before anything waits for a network.
  for (const auto& logger : started_loggers_)
    if (!logger->may_block()) logger->finalize(status);
  // Loggers that wait for a network end at the same time. The launcher soon kills a group of which one has failed.
  const bool hurries = status == RunStatus::failed && run_.strategy && run_.world_size() > 1;
  for (const auto& logger : started_loggers_)
    if (auto* const thread = dynamic_cast<LoggerThread*>(logger.get())) thread->begin_end(status, hurries);
  // The objects are the module's, which may be in another run next.
  log_exceptions(kWhen, [&] { services_.metrics.reset(RunningStage::train); });
  if (set_up_) {
    if (run_.data.module) log_exceptions(kWhen, [&] { run_.data.module->teardown(run_.fn); });
    for (const auto& callback : run_.callbacks)
      log_exceptions(kWhen, [&] { callback->teardown(services_.context, run_.fn); });
    log_exceptions(kWhen, [&] { run_.model->teardown(run_.fn); });
    for (const auto& [replica, context] : run_.replicas) log_exceptions(kWhen, [&] { replica->teardown(run_.fn); });
  }
  inference_weights_.reset();
  if (run_.strategy && run_.failed_alone) run_.strategy->abandon();
  log_exceptions(kWhen, [&] { report_profile(run_); });
  if (run_.strategy) run_.strategy->teardown();
  // The other processes do not wait for these.
  for (const auto& logger : started_loggers_)
    if (logger->may_block()) logger->finalize(status);
  if (run_.model) ComponentAccess::set_run(*run_.model, nullptr);
  for (const auto& [replica, context] : run_.replicas) ComponentAccess::set_run(*replica, nullptr);
  if (hardware_) hardware_->current_device.reset();
  if (hardware_) hardware_->matmul_scope.reset();
  if (hardware_) hardware_->spin_limit.reset();
  if (resume_) resume_->lock.reset();
  if (discards_folder_ && run_.fn == TrainerFn::fit) remove_unused_folder(run_.run_dir);
}

}  // namespace fulgur::detail
