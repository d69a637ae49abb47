#include "fulgur/callbacks/learning_rate_monitor.h"

#include <map>
#include <set>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void LearningRateMonitor::Options::fields(Fields& f) {
  f(logging_interval, "logging_interval", "When rates are logged; null: as often as each schedule changes them.");
  f(log_momentum, "log_momentum", "Also log the momentum, or the first beta, of optimizers that have one.");
  f(log_weight_decay, "log_weight_decay", "Also log the weight decay of optimizers that have one.");
  f(log_key_prefix, "log_key_prefix", "Prefix of each key.");
}

LearningRateMonitor::LearningRateMonitor(Options options) : options_(std::move(options)) {}

void LearningRateMonitor::on_train_start(RunContext& run) {
  groups_.clear();
  std::map<std::string, int64_t> of_class;
  std::set<std::string> taken;
  for (const PlannedOptimizer& planned : run.optimizer_plan().optimizers) {
    const Optimizer& optimizer = *planned.optimizer;
    std::string name = planned.scheduler ? planned.scheduler->name : "";
    if (name.empty()) {
      const int64_t before = of_class[optimizer.name()]++;
      name = cat("lr-", optimizer.name(), before > 0 ? cat("-", before) : "");
    }
    // A rate without a schedule may still be changed by the module at any step.
    const bool by_step = !planned.scheduler || planned.scheduler->interval == ScheduleInterval::step;
    const bool each_step = options_.logging_interval ? *options_.logging_interval == ScheduleInterval::step : by_step;
    const auto& groups = optimizer.groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      std::string part = groups[i].name;
      if (part.empty() && groups.size() > 1) part = cat("pg", i + 1);
      std::string key = cat(options_.log_key_prefix, name, part.empty() ? "" : "/", part);
      if (!taken.insert(key).second)
        throw ConfigError(cat("[callbacks.LearningRateMonitor] two parameter groups have the key '", key,
                              "'. Give groups, and schedules with a name, different names."));
      std::string momentum_key = cat(key, "-momentum"), decay_key = cat(key, "-weight_decay");
      groups_.push_back({std::move(key), std::move(momentum_key), std::move(decay_key), &optimizer, i, each_step});
    }
  }
}

void LearningRateMonitor::on_train_epoch_start(RunContext& run) { log(run, false); }

void LearningRateMonitor::on_train_batch_start(RunContext& run, const Batch&, int64_t) { log(run, true); }

void LearningRateMonitor::log(RunContext& run, bool at_step) const {
  for (const Group& group : groups_) {
    if (group.each_step != at_step) continue;
    run.log(group.key, group.optimizer->groups()[group.index].lr, {.reduce_fx = Reduce::last});
    const auto momentum = options_.log_momentum ? group.optimizer->momentum() : std::nullopt;
    if (momentum) run.log(group.momentum_key, *momentum, {.reduce_fx = Reduce::last});
    const auto decay = options_.log_weight_decay ? group.optimizer->weight_decay(group.optimizer->groups()[group.index])
                                                 : std::nullopt;
    if (decay) run.log(group.decay_key, *decay, {.reduce_fx = Reduce::last});
  }
}

std::vector<std::string> LearningRateMonitor::keys() const {
  std::vector<std::string> keys;
  for (const Group& group : groups_) keys.push_back(group.key);
  return keys;
}

[[maybe_unused]] static const bool registered_learning_rate_monitor = Registry<Callback>::add<LearningRateMonitor>(
    "LearningRateMonitor", "Logs the learning rates of all parameter groups.");

}  // namespace fulgur
