#include "setup/setup_steps.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "fulgur/core/contracts/monitor_direction.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/optim/composed_schedules.h"
#include "run/batch_sizes.h"

namespace fulgur::detail {
namespace {

// The loss is evaluated several times in a step, so things that otherwise happen once per batch are not possible.
void check_closure(const RunState& run, const Optimizer& optimizer) {
  const auto refuse = [&](std::string_view what) {
    throw ConfigError(cat("[trainer.fit] ", optimizer.name(),
                          " evaluates the loss several times in a step, which does not work with ", what, "."));
  };
  if (run.step.manual) return;
  if (run.accumulation != 1) refuse("accumulate_grad_batches; leave it out, or use larger batches");
  if (run.batch_sizes && run.batch_sizes->plan.accumulates)
    refuse("a callback that changes how many batches make a step; let it change the batches instead (by: batch)");
  if (!run.strategy->precision().allows_closure())
    refuse(cat("precision ", run.strategy->precision().name(), "; use 32-true or bf16-mixed, without master weights"));
  // Both would change weights and state inside the optimizer's step.
  if (run.options.on_nonfinite == OnNonFinite::skip || run.options.on_nonfinite == OnNonFinite::rollback)
    refuse(cat("on_nonfinite: ", enum_text(run.options.on_nonfinite), "; use raise, stop or off"));
  if (run.strategy->splits_batches())
    refuse(cat("strategy ", run.strategy->name(), ", which splits batches into parts"));
}

RunLength run_length(RunState& run, Services& services) {
  RunLength length{.epochs = run.options.epoch_limit,
                   .steps = services.context.extent().estimated_steps(),
                   .steps_per_epoch = {},
                   .samples_per_step = {},
                   .max_steps = services.context.extent().max_steps()};
  const FirstEpoch first = first_epoch_of(run);
  if (first.batches) {
    const int64_t steps = (*first.batches + first.window - 1) / first.window;  // the last window may be shorter
    length.steps_per_epoch = static_cast<double>(steps);
  }
  if (!run.stages[RunningStage::train].loaders.empty())
    length.samples_per_step = static_cast<double>(first.batch_size * first.window * run.data_shares());
  return length;
}

double lr_factor(const RunState& run, const RunLength& length) {
  if (run.options.scale_lr == ScaleLr::none) return 1;
  const double ratio = length.samples_per_step.value_or(0) / static_cast<double>(*run.options.base_batch_size);
  if (ratio <= 0)
    throw ConfigError(
        "[trainer.scale_lr] the training loader does not report its batch size. Set the learning rate yourself, and "
        "scale_lr: none.");
  return run.options.scale_lr == ScaleLr::linear ? ratio : std::sqrt(ratio);
}

// A part of a batch is repeated with half the samples, which only the Trainer may do.
void check_micro_batches(const RunState& run, const Optimizer& optimizer) {
  const auto refuse = [](const std::string& what) {
    throw ConfigError(cat("[trainer.auto_micro_batch] ", what, ". Set auto_micro_batch to false."));
  };
  if (optimizer.needs_closure()) refuse(cat(optimizer.name(), " evaluates the whole batch several times in a step"));
  if (run.strategy->splits_batches())
    refuse(cat("strategy ", run.strategy->name(), " splits batches into parts itself"));
}

// The unit of a length is easily forgotten: 500 is 500 epochs unless the schedule steps per optimizer step.
void warn_of_long_warmup(const SchedulerConfig& config, const RunLength& length) {
  const bool by_epoch = config.interval == ScheduleInterval::epoch;
  const auto total = by_epoch ? length.epochs : length.steps;
  if (!total || *total <= 0) return;
  const int64_t steps = std::max<int64_t>(*total / config.frequency, 1);
  const auto warn = [&](std::string_view option, int64_t begin, std::string_view consequence) {
    if (begin < steps) return;
    const auto in_units = [&](int64_t count) { return counted(count * config.frequency, by_epoch ? "epoch" : "step"); };
    log::warn("lr_scheduler.longer_than_run",
              cat(option, " is ", in_units(begin), ", but the run has ", counted(*total, by_epoch ? "epoch" : "step"),
                  ": ", consequence, ". Shorten it, for example to 0.05dur",
                  by_epoch ? "; if optimizer steps are meant, set lr_scheduler_interval: step" : ""));
  };
  if (const auto* warmup = dynamic_cast<const WarmupLR*>(config.scheduler.get()))
    warn("WarmupLR.length", warmup->length(), "the rate stays below its full value");
  if (const auto* sequence = dynamic_cast<const SequentialLR*>(config.scheduler.get()))
    warn("the last of SequentialLR.milestones", sequence->last_begin(), "the last schedule never begins");
}

void make_handles(RunState& run) {
  for (const auto& [name, value] : unique_parameters(*run.model))
    run.parameters_at_start.insert(value.unsafeGetTensorImpl());
  for (const auto& planned : run.plan.optimizers)
    run.handles.push_back(std::make_unique<OptimizerHandle>(
        planned.optimizer, [&step = run.step](OptimizerHandle& handle, const Closure& closure) {
          step.step_optimizer(handle.optimizer(), closure);
        }));
}

// The module's plan, or that of the config.
OptimizerPlan choose_plan(const RunState& run) {
  OptimizerPlan plan = run.model->configure_optimizers();
  const TrainerComponents& components = run.components;
  if (!plan.empty()) {
    if (components.optimizer)
      throw ConfigError(
          "[trainer.fit] both the module's configure_optimizers() and the config name an optimizer. Remove one of the "
          "two.");
    return plan;
  }
  if (!components.optimizer)
    throw ConfigError(
        "[trainer.fit] the module plans no optimizer and the config names none. Add `optimizer: {class_path: AdamW, "
        "init_args: {lr: 1e-3}}`, "
        "or override configure_optimizers().");
  PlannedOptimizer planned{components.optimizer->create(), std::nullopt};
  if (components.lr_scheduler) {
    planned.scheduler = components.lr_scheduler_config;
    planned.scheduler->scheduler = components.lr_scheduler->create();
  }
  return OptimizerPlan({std::move(planned)});
}

void check_number_of_optimizers(const RunState& run) {
  if (run.step.manual) return;
  if (run.plan.optimizers.size() > 1)
    throw ConfigError(cat("[trainer.fit] configure_optimizers() planned ",
                          static_cast<int64_t>(run.plan.optimizers.size()),
                          " optimizers, which only manual optimization can use. Override automatic_optimization() to "
                          "return false and step them in "
                          "training_step, or put the parameters into groups of one optimizer."));
  if (run.plan.without_optimizer)
    log::warn("trainer.no_optimizer",
              "configure_optimizers() plans no optimizer: the training steps run, but no weight changes");
}

void prepare_optimizer(const RunState& run, Optimizer& optimizer) {
  if (!optimizer.attached() && run.plan.optimizers.size() > 1)
    throw ConfigError(cat("[trainer.fit] configure_optimizers() planned ",
                          static_cast<int64_t>(run.plan.optimizers.size()), " optimizers; ", optimizer.name(),
                          " has no parameters, and it is unclear which of the module's belong to it. Attach each: "
                          "optimizer->attach(fulgur::trainable_groups(*part))."));
  if (!optimizer.attached()) optimizer.attach(trainable_groups(*run.model));
  optimizer.scale_lr(run.lr_factor);
  if (run.options.auto_micro_batch) check_micro_batches(run, optimizer);
  if (optimizer.needs_closure()) check_closure(run, optimizer);
  run.strategy->precision().prepare_optimizer(optimizer);
}

void prepare_schedule(const RunState& run, LogStore& logs, SchedulerConfig& config, Optimizer& optimizer,
                      const RunLength& length) {
  if (!config.scheduler) throw ConfigError("[trainer.fit] configure_optimizers() returned an empty scheduler.");
  if (config.frequency < 1)
    throw ConfigError(cat("[trainer.lr_scheduler] frequency must be at least 1; got ", config.frequency, "."));
  if (config.scheduler->wants_metric() && !config.monitor && !run.step.manual)
    throw ConfigError(
        "[trainer.lr_scheduler] the schedule follows a metric; name it with monitor (lr_scheduler_monitor in the "
        "config).");
  if (config.monitor) {
    logs.monitor({*config.monitor});
    const std::optional<MonitorMode> mode = config.scheduler->metric_mode();
    if (const std::string doubt = mode ? doubtful_mode(*config.monitor, *mode) : ""; !doubt.empty())
      log::warn("lr_scheduler.mode", cat("the learning rate schedule: ", doubt));
  }
  config.scheduler->scale_rates(run.lr_factor);
  config.scheduler->set_run_length(length, config.interval, config.frequency);
  config.scheduler->attach(optimizer);
}

}  // namespace

void plan_optimizers(RunState& run, Services& services) {
  run.plan = choose_plan(run);
  run.step.manual = !run.model->automatic_optimization();
  check_number_of_optimizers(run);
  const RunLength length = run_length(run, services);
  run.lr_factor = lr_factor(run, length);
  if (run.lr_factor != 1)
    run.print(cat("learning rates: × ", run.lr_factor, " (scale_lr: ", enum_text(run.options.scale_lr),
                  ", global batch ", format_fixed(*length.samples_per_step, 0), ", base_batch_size ",
                  *run.options.base_batch_size, ")"));
  for (auto& planned : run.plan.optimizers) {
    if (!planned.optimizer) throw ConfigError("[trainer.fit] configure_optimizers() returned an empty optimizer.");
    prepare_optimizer(run, *planned.optimizer);
    if (planned.scheduler) prepare_schedule(run, services.logs, *planned.scheduler, *planned.optimizer, length);
    // The few steps of a fast_dev_run are not what the schedule was made for.
    if (planned.scheduler && !run.fast_dev_run()) warn_of_long_warmup(*planned.scheduler, length);
  }
  make_handles(run);
}

namespace {

void scale_rates(ConfigNode& node, const TypeInfo& type, double factor);

// The learning rates among the options of a component or map, and of the components in it.
void scale_rates_of(ConfigNode& options, const Fields& fields, double factor) {
  for (const Field& field : fields.all()) {
    ConfigNode* value = options.find(field.name);
    if (!value) continue;
    if (!field.is_learning_rate || !value->is_scalar()) {
      scale_rates(*value, field.type, factor);
      continue;
    }
    std::string comment = std::move(value->comment);
    *value = ConfigNode::number(std::strtod(value->text().c_str(), nullptr) * factor);
    value->comment = std::move(comment);
  }
}

// `node` is a value of this type, as Fields::write gives it.
void scale_rates(ConfigNode& node, const TypeInfo& type, double factor) {
  if (type.kind == TypeInfo::Kind::component) {
    const ConfigNode* name = node.find("class_path");
    ConfigNode* options = node.find("init_args");
    const ComponentInfo* info = name && options ? component_registry(type.registry_kind).find(name->text()) : nullptr;
    if (!info) return;
    scale_rates_of(*options, OptionFields(info->make_options()).fields, factor);
  } else if (type.kind == TypeInfo::Kind::object && node.is_map()) {
    scale_rates_of(node, *type.object(), factor);
  } else if (!type.parts.empty()) {
    for (ConfigNode& item : node.items()) scale_rates(item, type.parts.front(), factor);
    for (auto& [key, item] : node.entries()) scale_rates(item, type.parts.front(), factor);
  }
}

// Adds a comment with the number of steps to each length that is `auto`. The length stays `auto`, so that it fits if
// another option is changed. `node` is the `{class_path, init_args}` from which `scheduler` was created.
void note_lengths(ConfigNode& node, const LrScheduler& scheduler) {
  ConfigNode* options = node.find("init_args");
  if (!options) return;
  for (const auto& [option, steps] : scheduler.decided()) {
    if (!options->find(option)) options->set(option, ConfigNode::string("auto"));
    std::string& comment = options->find(option)->comment;
    if (!comment.empty()) comment += '\n';
    comment += cat(steps, " steps of the schedule in this run");
  }
  // The parts of the schedule appear in its options in the same order.
  const auto parts = scheduler.parts();
  size_t next = 0;
  const auto visit = [&](ConfigNode& value) {
    if (value.find("class_path") && next < parts.size()) note_lengths(value, *parts[next++]);
  };
  for (auto& [key, value] : options->entries()) {
    visit(value);
    for (ConfigNode& item : value.items()) visit(item);
  }
}

}  // namespace

void resolve_rates(ConfigNode& config, const OptimizerPlan& plan, double factor) {
  ConfigNode* schedule = config.find("lr_scheduler");
  if (schedule && schedule->is_map() && !plan.optimizers.empty() && plan.optimizers.front().scheduler)
    note_lengths(*schedule, *plan.optimizers.front().scheduler->scheduler);
  if (factor == 1) return;
  ConfigNode* trainer = config.find("trainer");
  const ConfigNode* optimizer = config.find("optimizer");
  // Each run scales rates that are set in code again.
  if (!trainer || !optimizer || !optimizer->is_map()) return;
  scale_rates(*config.find("optimizer"), FieldTraits<Spec<Optimizer>>::type(), factor);
  if (schedule) scale_rates(*schedule, FieldTraits<Spec<LrScheduler>>::type(), factor);
  const std::string was = trainer->find("scale_lr") ? trainer->find("scale_lr")->text() : "";
  trainer->set("scale_lr", ConfigNode::string("none"));
  trainer->find("scale_lr")->comment = cat("The learning rates below are scaled already: × ", factor, " (", was, ").");
  trainer->erase("base_batch_size");
}

}  // namespace fulgur::detail
