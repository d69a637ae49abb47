#include "session.h"

#include <algorithm>
#include <fstream>
#include <typeinfo>

#include "evaluation_loop.h"
#include "fit_loop.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/log.h"
#include "fulgur/core/rng.h"
#include "fulgur/core/text.h"
#include "fulgur/strategies/true_precision.h"
#include "run_folder.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

void Session::choose_hardware() {
  Run& run = *run_;
  threads_ = decide_threads(run.options.num_threads);
  set_threads(threads_);
  devices_ = choose_devices(run.options);
  if (run.parts.seed) seed_everything(*run.parts.seed);
  auto precision = run.parts.precision ? run.parts.precision : make_precision(run.options.precision);
  run.strategy = run.parts.strategy ? run.parts.strategy : run.options.strategy.create();
  run.strategy->configure(devices_.devices, std::move(precision));
}

void Session::make_callbacks() {
  Run& run = *run_;
  std::vector<std::shared_ptr<Callback>> list;
  for (const auto& spec : run.options.callbacks) list.push_back(spec.create());
  for (const auto& callback : run.parts.callbacks) list.push_back(callback);
  for (auto& own : run.model->configure_callbacks()) {
    // A callback of the module replaces a configured one of its class.
    std::erase_if(list, [&](const auto& other) { return typeid(*other) == typeid(*own); });
    list.push_back(std::move(own));
  }
  const auto has_phase = [&](Phase phase) {
    return std::any_of(list.begin(), list.end(), [&](const auto& c) { return c->phase() == phase; });
  };
  if (!run.options.enable_checkpointing && has_phase(Phase::checkpoint))
    throw ConfigError("[trainer.callbacks] enable_checkpointing is false, but a checkpoint callback is configured. Remove one of the two.");
  const auto add_default = [&](const char* name) { list.push_back(Spec<Callback>(name).create()); };
  if (verb_ == Verb::fit && run.options.enable_checkpointing && !has_phase(Phase::checkpoint)) add_default("ModelCheckpoint");
  if (run.options.enable_progress_bar &&
      std::none_of(list.begin(), list.end(), [](const auto& c) { return c->state_key() == "ProgressBar"; }))
    add_default("ProgressBar");
  run.set_callbacks(std::move(list));
}

void Session::make_loggers() {
  Run& run = *run_;
  if (run.fast_dev_run()) return;
  if (!run.parts.loggers.empty()) {
    run.active_loggers = run.parts.loggers;
  } else if (run.options.logger.enabled) {
    if (run.options.logger.loggers.empty()) {
      for (const char* name : {"CsvLogger", "JsonlLogger"}) run.active_loggers.push_back(Spec<Logger>(name).create());
    }
    for (const auto& spec : run.options.logger.loggers) run.active_loggers.push_back(spec.create());
  }
}

void Session::take_folder() {
  Run& run = *run_;
  std::string name = kDefaultRunName;
  std::optional<int64_t> version;
  if (!run.active_loggers.empty()) {
    name = run.active_loggers.front()->run_name().value_or(name);
    version = run.active_loggers.front()->run_version();
  }
  for (const auto& logger : run.active_loggers) {
    const auto other = logger->run_name();
    const auto other_version = logger->run_version();
    if ((other && *other != name) || (other_version && other_version != version))
      throw ConfigError("[trainer.logger] loggers name different run folders; name and version of the first count. Set them in one logger only.");
  }
  // A trial run leaves nothing behind.
  if (run.fast_dev_run()) return;
  run.run_dir = take_run_folder(run.options.default_root_dir, name, version);
  for (const auto& logger : run.active_loggers) {
    logger->start(run.run_dir, std::nullopt);
    started_loggers_.push_back(logger);
  }
}

void Session::set_limits() {
  Run& run = *run_;
  TrainerOptions& o = run.options;
  if (run.fast_dev_run()) {
    const int64_t n = o.fast_dev_run.batches;
    o.limit_train_batches = o.limit_val_batches = o.limit_test_batches = o.limit_predict_batches = BatchLimit(n);
    o.max_steps = n;
    o.max_epochs = 1;
    o.num_sanity_val_steps = 0;
    o.val_check_interval = BatchLimit(1.0);
    o.check_val_every_n_epoch = 1;
    o.log_every_n_steps = 1;
  }
  run.checkpoints_allowed = o.enable_checkpointing && !run.fast_dev_run();
  run.accumulation = o.accumulate_grad_batches;
  run.step_limit = o.max_steps;
  run.epoch_limit = o.max_epochs;
  if (verb_ != Verb::fit) return;
  if (!o.max_epochs && o.max_steps < 0) {
    log::warn("trainer.no_limit", "neither max_epochs nor max_steps is set; training stops after 1000 epochs. Set one of them (-1 for no limit)");
    run.epoch_limit = 1000;
  }
  if (run.epoch_limit && *run.epoch_limit < 0) run.epoch_limit.reset();
}

void Session::set_up_stage(Stage stage, const BatchLimit& limit, std::string_view option) {
  Run& run = *run_;
  std::vector<std::shared_ptr<Loader>> loaders;
  if (run.data.module) {
    loaders = run.data.module->loaders(stage);
  } else {
    const auto& own = stage == Stage::train ? run.data.train : stage == Stage::validate ? run.data.validation
                      : stage == Stage::test ? run.data.test : run.data.predict;
    loaders = own.empty() ? run.model->dataloaders(stage) : own;
  }
  std::erase(loaders, nullptr);
  StageLoaders& target = run.stages[stage];
  for (auto& loader : loaders) {
    loader->configure(run.parts.seed.value_or(0), run.rank(), run.world_size());
    target.batches.push_back(limit.resolve(loader->size(), option));
    if (stage != Stage::train && loader->shuffles())
      log::warn("data.evaluation_shuffled", cat("the ", name_of(stage), " loader shuffles; evaluation needs no random order"));
    target.loaders.push_back(std::move(loader));
  }
}

void Session::set_up_data() {
  Run& run = *run_;
  const TrainerOptions& o = run.options;
  const Stage first_stage = verb_ == Verb::fit ? Stage::train : verb_ == Verb::validate ? Stage::validate : verb_ == Verb::test ? Stage::test : Stage::predict;
  if (run.data.module && !run.model->dataloaders(first_stage).empty())
    throw ConfigError("[trainer.data] both a data module and the module's own dataloaders() are given. Use one of the two.");
  switch (verb_) {
    case Verb::fit:
      set_up_stage(Stage::train, o.limit_train_batches, "limit_train_batches");
      if (run.stages[Stage::train].loaders.empty())
        throw ConfigError("[trainer.fit] there is no training data. Give a data module (data: in the config) or a loader.");
      if (run.stages[Stage::train].loaders.size() > 1)
        throw ConfigError("[trainer.fit] several training loaders are not supported yet. Combine the data sets in one loader.");
      if (!o.limit_val_batches.is_zero()) set_up_stage(Stage::validate, o.limit_val_batches, "limit_val_batches");
      run.validation_runs = !run.stages[Stage::validate].loaders.empty();
      if (run.validation_runs && !run.model->overridden().has(Hook::validation_step)) {
        warn_no_validation_step();
        run.validation_runs = false;
      }
      if (run.stages[Stage::train].batches.front() == 0 && !o.limit_train_batches.is_zero())
        throw DataError("[trainer.fit] the training loader has no batch. Is the data set empty, or smaller than one batch with drop_last?");
      // Throws now, not after an epoch, where the interval cannot be.
      if (run.validation_runs) validation_interval(o, run.stages[Stage::train].batches.front());
      break;
    case Verb::validate: set_up_stage(Stage::validate, o.limit_val_batches, "limit_val_batches"); break;
    case Verb::test: set_up_stage(Stage::test, o.limit_test_batches, "limit_test_batches"); break;
    case Verb::predict: set_up_stage(Stage::predict, o.limit_predict_batches, "limit_predict_batches"); break;
  }
  if (verb_ != Verb::fit && run.stages.begin()->second.loaders.empty())
    throw ConfigError(cat("[trainer.", name_of(verb_), "] there is no ", name_of(verb_), " data. Does the data module have such a loader?"));
}

void Session::make_optimizers() {
  Run& run = *run_;
  run.plan = run.model->configure_optimizers();
  const bool from_config = run.plan.empty();
  if (from_config) {
    if (!run.parts.optimizer)
      throw ConfigError("[trainer.fit] the module plans no optimizer and the config names none. Add `optimizer: {class_path: AdamW, init_args: {lr: 1e-3}}`, "
                        "or override configure_optimizers().");
    PlannedOptimizer planned{run.parts.optimizer->create(), std::nullopt};
    if (run.parts.lr_scheduler)
      planned.scheduler = SchedulerConfig{.scheduler = run.parts.lr_scheduler->create(), .interval = run.parts.lr_scheduler_interval,
                                          .frequency = 1, .monitor = run.parts.lr_scheduler_monitor, .strict = true, .name = {}};
    run.plan = OptimizerPlan({std::move(planned)});
  } else if (run.parts.optimizer) {
    throw ConfigError("[trainer.fit] both the module's configure_optimizers() and the config name an optimizer. Remove one of the two.");
  }
  if (run.plan.optimizers.size() > 1)
    throw ConfigError(cat("[trainer.fit] configure_optimizers() returned ", static_cast<int64_t>(run.plan.optimizers.size()),
                          " optimizers; this version trains with one. Put the parameters into groups of one optimizer."));
  for (auto& planned : run.plan.optimizers) {
    if (!planned.optimizer) throw ConfigError("[trainer.fit] configure_optimizers() returned an empty optimizer.");
    if (!planned.optimizer->attached()) planned.optimizer->attach(trainable_groups(*run.model));
    if (planned.optimizer->needs_closure())
      throw ConfigError(cat("[trainer.fit] ", planned.optimizer->name(), " evaluates the loss several times a step, which this version does not support."));
    if (!planned.scheduler) continue;
    SchedulerConfig& config = *planned.scheduler;
    if (config.frequency < 1) throw ConfigError(cat("[trainer.lr_scheduler] frequency must be at least 1; got ", config.frequency, "."));
    if (config.scheduler->wants_metric() && !config.monitor)
      throw ConfigError("[trainer.lr_scheduler] the schedule follows a metric; name it with monitor.");
    const auto length = config.interval == ScheduleInterval::step ? run.estimated_steps() : run.epoch_limit;
    if (length) config.scheduler->set_total_steps(*length / config.frequency);
    config.scheduler->attach(*planned.optimizer);
  }
}

void Session::prepare(std::shared_ptr<LightningModule> module, DataSource data, const std::optional<fs::path>& checkpoint) {
  Run& run = *run_;
  if (!module) throw ConfigError("[trainer] there is no module. Name one under `model:` in the config.");
  run.model = std::move(module);
  run.data = std::move(data);
  choose_hardware();
  set_limits();
  run.model->set_run(&run);
  make_callbacks();
  make_loggers();
  std::optional<CheckpointContent> content;
  if (checkpoint)
    content = read_checkpoint(*checkpoint, verb_ == Verb::fit ? CheckpointParts::all : CheckpointParts::weights_and_state);

  set_up_ = true;
  if (run.data.module) {
    run.data.module->prepare_data();
    // Before setup: statistics of the training data come from the checkpoint, not from this machine's files.
    if (content && content->state.contains("data")) run.data.module->load_state(content->state.at("data"));
    run.data.module->setup(verb_);
  } else {
    run.model->prepare_data();
  }
  run.each_callback(LogScope::forbidden, [&](Callback& c) { c.setup(run, verb_); });
  run.model->setup(verb_);
  run.model->configure_model();
  set_up_data();
  if (content) load_module_state(*run.model, content->module);
  run.strategy->attach(*run.model);
  if (verb_ == Verb::fit) make_optimizers();
  take_folder();
  save_config();
  print_start();
  for (const auto& logger : run.active_loggers) logger->log_hyperparams(run.model->hparams());
  if (content) {
    run.each_callback(LogScope::forbidden, [&](Callback& c) { c.on_load_checkpoint(run, content->state); });
    run.model->on_load_checkpoint(content->state);
    if (verb_ == Verb::fit) restore(*content);
    log::info(cat("checkpoint: ", *checkpoint));
  }
}

void Session::restore(const CheckpointContent& content) {
  Run& run = *run_;
  const StateTree& state = content.state;
  if (content.optimizers.is_null() || state.at("weights_only").as_bool())
    throw CheckpointError("[trainer.fit] the checkpoint holds weights only (save_weights_only), so the run cannot go on from it.");
  const auto& optimizers = content.optimizers.as_list();
  const auto& schedulers = state.at("lr_schedulers").as_list();
  if (optimizers.size() != run.plan.optimizers.size() || schedulers.size() != run.plan.optimizers.size())
    throw CheckpointError(cat("[trainer.fit] the checkpoint has ", static_cast<int64_t>(optimizers.size()), " optimizers, the run ",
                              static_cast<int64_t>(run.plan.optimizers.size()), "."));
  for (size_t i = 0; i < optimizers.size(); ++i) {
    PlannedOptimizer& planned = run.plan.optimizers[i];
    planned.optimizer->load_state(optimizers[i]);
    if (planned.scheduler && !schedulers[i].is_null()) planned.scheduler->scheduler->load_state(schedulers[i]);
  }
  run.strategy->precision().load_state(state.at("precision"));
  for (const auto& callback : run.callbacks)
    if (state.at("callbacks").contains(callback->state_key())) callback->load_state(state.at("callbacks").at(callback->state_key()));
  run.progress_.load_state(state.at("progress"));
  run.logs.load_state(state.at("logs"));
  const StateTree& loop = state.at("loop");
  run.accumulation = loop.at("accumulation").as_int();
  run.window_length = loop.at("window_length").as_int();
  run.window_done = loop.at("window_done").as_int();
  run.logged_step_ = loop.at("logged_step").as_int();
  run.last_saved_step_ = run.progress_.global_step;
  const auto& loaders = run.stages[Stage::train].loaders;
  const auto& loader_states = state.at("loaders").as_list();
  if (loader_states.size() == loaders.size())
    for (size_t i = 0; i < loaders.size(); ++i) loaders[i]->load_state(loader_states[i]);
  for (auto& [name, value] : unique_parameters(*run.model)) {
    if (!state.at("gradients").contains(name)) continue;
    value.mutable_grad() = state.at("gradients").at(name).tensor().to(value.device());
  }
  load_rng_state(run.device(), state.at("rng"));
}

ConfigNode options_node(TrainerOptions options) {
  Fields fields;
  options.fields(fields);
  return fields.write();
}

void Session::save_config() {
  Run& run = *run_;
  ConfigNode written = run.parts.config ? *run.parts.config : ConfigNode::map({{"trainer", options_node(run.options)}});
  run.resolved_config = resolve_config(std::move(written), devices_, threads_, run.parts.seed);
  if (run.run_dir.empty()) return;
  const fs::path path = run.run_dir / "config.yaml";
  std::ofstream file(path);
  file << to_yaml(run.resolved_config, {.comments = true});
  file.close();
  if (!file) log::warn("trainer.config_not_saved", cat("the config could not be written to ", path));
}

void Session::print_start() {
  Run& run = *run_;
  run.print(cat("devices: ", devices_.text(), " · strategy: ", run.strategy->name(), " · precision: ", run.strategy->precision().name(),
                " · threads: ", threads_, " · seed: ", run.parts.seed ? std::to_string(*run.parts.seed) : "none"));
  std::vector<std::string> parts;
  for (const auto& [stage, loaders] : run.stages) {
    int64_t samples = 0;
    bool known = true;
    for (const auto& loader : loaders.loaders) {
      known &= loader->samples().has_value();
      samples += loader->samples().value_or(0);
    }
    if (loaders.loaders.empty()) continue;
    const auto batches = loaders.total();
    parts.push_back(cat(name_of(stage), " ", known ? std::to_string(samples) : "?", " samples, ", batches ? std::to_string(*batches) : "?", " batches"));
  }
  run.print(cat("data: ", join(parts, " · ")));
  run.print(run.run_dir.empty() ? "run folder: none (fast_dev_run)" : cat("run folder: ", run.run_dir));
}

void Session::on_exception(const std::exception& error) noexcept {
  Run& run = *run_;
  if (!run.model || !run.strategy) return;
  const auto quietly = [](auto function) {
    try {
      function();
    } catch (const std::exception& later) {
      log::error(cat("while handling the error above: ", later.what()));
    }
  };
  for (const auto& callback : run.callbacks) quietly([&] { callback->on_exception(run, error); });
  if (run.data.module && set_up_) quietly([&] { run.data.module->on_exception(error); });
}

void Session::finish(RunStatus status) noexcept {
  if (finished_) return;
  finished_ = true;
  Run& run = *run_;
  const auto quietly = [](auto function) {
    try {
      function();
    } catch (const std::exception& error) {
      log::error(cat("during teardown: ", error.what()));
    }
  };
  for (const auto& logger : started_loggers_) logger->finalize(status);
  if (set_up_) {
    if (run.data.module) quietly([&] { run.data.module->teardown(verb_); });
    for (const auto& callback : run.callbacks) quietly([&] { callback->teardown(run, verb_); });
    quietly([&] { run.model->teardown(verb_); });
  }
  if (run.strategy) run.strategy->teardown();
  if (run.model) run.model->set_run(nullptr);
}

}  // namespace fulgur::detail
