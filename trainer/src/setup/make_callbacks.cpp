#include "setup/setup_steps.h"

#include <algorithm>
#include <set>
#include <typeinfo>

#include "fulgur/core/contracts/batch_size_plan.h"
#include "fulgur/core/text/text.h"
#include "logging/logger_thread.h"

namespace fulgur::detail {
namespace {

// A trial saves nothing and logs nothing, so it has neither checkpoints nor a metric to follow; and its batch size is
// the one that is tried.
bool is_left_out_of_trial(const Callback& callback) {
  return callback.phase() == Phase::checkpoint || callback.required_metric() || !callback.monitored_metrics().empty() ||
         dynamic_cast<const PlansBatchSizes*>(&callback) != nullptr;
}

}  // namespace

void make_callbacks(RunState& run, LogStore& logs) {
  std::vector<std::shared_ptr<Callback>> list;
  for (const auto& spec : run.options.callbacks) list.push_back(spec.create());
  for (const auto& callback : run.components.callbacks) list.push_back(callback);
  for (auto& own : run.model->configure_callbacks()) {
    if (run.components.is_trial && is_left_out_of_trial(*own)) continue;
    // A callback of the module replaces a configured one of the same class.
    const Callback& replacing = *own;
    std::erase_if(list, [&](const auto& item) {
      const Callback& other = *item;
      return typeid(other) == typeid(replacing);
    });
    list.push_back(std::move(own));
  }
  const auto has_phase = [&](Phase phase) {
    return std::ranges::any_of(list, [&](const auto& c) { return c->phase() == phase; });
  };
  if (!run.options.enable_checkpointing && has_phase(Phase::checkpoint))
    throw ConfigError(
        "[trainer.callbacks] enable_checkpointing is false, but a checkpoint callback is configured. Remove one of the "
        "two.");
  const auto add_default = [&](const char* name) {
    if (std::ranges::none_of(list, [&](const auto& c) { return c->state_key() == name; }))
      list.push_back(Spec<Callback>(name).create());
  };
  const bool checkpoints =
      std::ranges::any_of(list, [](const auto& c) { return c->state_key().starts_with("ModelCheckpoint"); });
  if (run.fn == TrainerFn::fit && run.options.enable_checkpointing && !checkpoints) add_default("ModelCheckpoint");
  if (run.fn == TrainerFn::fit && run.options.enable_model_summary) add_default("ModelSummary");
  if (run.options.enable_progress_bar && run.is_global_zero()) add_default("ProgressBar");
  for (const auto& callback : list) {
    logs.monitor(callback->monitored_metrics());
    run.remembers_batches |=
        ComponentAccess::overridden(*callback).has(Hook::on_exception) && callback->saves_on_exception();
  }
  run.callbacks.set(std::move(list));
}

void make_loggers(RunState& run) {
  if (run.fast_dev_run() || run.options.barebones || !run.is_global_zero()) return;
  if (run.options.logger.enabled) {
    if (run.options.logger.loggers.empty() && run.components.loggers.empty())
      for (const char* name : {"CsvLogger", "JsonlLogger"}) run.active_loggers.push_back(Spec<Logger>(name).create());
    for (const auto& spec : run.options.logger.loggers) run.active_loggers.push_back(spec.create());
  }
  for (const auto& logger : run.components.loggers) run.active_loggers.push_back(logger);
  for (const auto& logger : run.active_loggers)
    run.log_targets.push_back(logger->may_block() ? std::make_shared<LoggerThread>(logger) : logger);
}

void check_state_keys(RunState& run) {
  std::set<std::string> keys;
  run.each_callback(LogScope::forbidden, "state", [&](Callback& callback) {
    const bool stateful = !callback.state().as_map().empty();
    if (stateful && !keys.insert(callback.state_key()).second)
      throw ConfigError(cat("[trainer.callbacks] two callbacks keep state under the key '", callback.state_key(), "'. ",
                            callback.state_key().find('{') == std::string::npos
                                ? "A run may have one of this class: remove the other. A class of your own may be "
                                  "there several times if it overrides state_key()."
                                : "The key contains the options that distinguish them: change one of these, or "
                                  "override state_key()."));
  });
}

}  // namespace fulgur::detail
