#include "logging/metric_store.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fulgur/core/state/copy_state.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

void check_metric_options(std::string_view name, LogScope scope, const LogOptions& options) {
  if (scope == LogScope::forbidden)
    throw Error(cat("[module.log] '", name,
                    "' cannot be logged from this hook. Log from a step, a batch hook, or an epoch hook."));
  if (name.empty()) throw Error("[module.log] a metric needs a name.");
  if (options.on_step.value_or(false) || !options.on_epoch.value_or(true))
    throw Error(cat("[module.log] '", name,
                    "' is a metric object, which is logged for the epoch. Leave out on_step and on_epoch, or log the "
                    "value of a batch with log(name, metric.compute())."));
  if (options.reduce_fx != Reduce::mean)
    throw Error(
        cat("[module.log] '", name, "' is a metric object, which merges batches in its own way. Leave out reduce_fx."));
  if (options.batch_size)
    throw Error(
        cat("[module.log] '", name, "' is a metric object, which counts its samples itself. Leave out batch_size."));
}

[[noreturn]] void refuse_lists(std::string_view name) {
  throw Error(cat("'", name, "' keeps all samples, which a recorded step cannot do. Give it thresholds"));
}

void load_merged(Metric& metric, const StateTree::List& states) {
  metric.load_state(states.front());
  for (size_t i = 1; i < states.size(); ++i) metric.merge_state(states[i]);
}

}  // namespace

MetricStore::Entry* MetricStore::find(std::string_view name, RunningStage stage) {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& e) { return e.stage == stage && e.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

void MetricStore::remember(Entry entry) {
  if (const Entry* there = find(entry.name, entry.stage)) {
    if (there->metric != entry.metric)
      throw Error(cat("[module.log] '", entry.name,
                      "' was logged before with another metric object. Give each metric its own name."));
    if (there->options.prog_bar != entry.options.prog_bar || there->options.logger != entry.options.logger)
      throw Error(cat("[module.log] '", entry.name,
                      "' was logged before with other options. Use one set of options per name."));
    return;
  }
  for (const Entry& other : entries_) {
    if (other.metric != entry.metric) continue;
    if (other.stage == entry.stage)
      throw Error(cat("[module.log] the metric of '", entry.name, "' is already logged as '", other.name,
                      "'. Use one metric per name, and with several dataloaders one metric per loader."));
    throw Error(cat("[module.log] the metric of '", entry.name, "' has batches of '", other.name,
                    "', which another stage logs. Use one metric per stage."));
  }
  entries_.push_back(std::move(entry));
}

void MetricStore::log(std::string_view name, LogScope scope, RunningStage stage, Metric& metric,
                      const LogOptions& options) {
  if (scope == LogScope::muted) return;
  check_metric_options(name, scope, options);
  remember({std::string(name), stage, &metric, options});
  const bool is_pending = stage == RunningStage::train && pending_.contains(name);
  if (recording_ && (is_pending || (metric.keeps_lists() && !updates_before_.contains(&metric)))) {
    metric.reset();  // its lists have memory of the recording
    if (!is_pending) refuse_lists(name);
    throw Error(cat("'", name, "' was logged that the earlier steps did not log"));
  }
  if (recording_) updates_before_.try_emplace(&metric, 0);
  if (!is_pending) return;
  // The checkpoint's batches come first, as if the run had not been interrupted.
  StateTree::List states = pending_.at(name).as_list();
  states.push_back(copy_state(metric.state()));
  load_merged(metric, states);
  pending_.as_map().erase(std::string(name));
}

void MetricStore::take_from_replica(std::string_view name, Metric& of_replica, RunningStage stage) {
  // The run's module has logged before, unless logging does nothing.
  if (const Entry* own = find(name, stage)) own->metric->merge_state(of_replica.state());
  of_replica.reset();
}

std::vector<MetricStore::Matrix> MetricStore::close_epoch(RunningStage stage, LogStore& logs,
                                                          Collectives* collectives) {
  std::vector<Matrix> matrices;
  if (collectives) {
    if (collectives->world_size() > 1) merge_ranks(stage, *collectives);
    for (const Entry& entry : entries_)
      if (entry.stage == stage) log_value(entry, logs, matrices);
    if (stage == RunningStage::train)
      for (const auto& [name, states] : std::exchange(pending_, StateTree()).as_map())
        if (!find(name, stage))
          log::warn("trainer.metric_of_checkpoint",
                    cat("'", name,
                        "' has no value in this epoch: the checkpoint has its state, but no batch was left in which "
                        "the module logs the metric"));
  }
  reset(stage);
  return matrices;
}

void MetricStore::merge_ranks(RunningStage stage, Collectives& collectives) {
  const StateTree own = states(stage);
  if (!collectives.any(!own.as_map().empty())) return;
  std::vector<StateTree> ranks;
  for (const std::string& packed : collectives.gather_text(pack_state(own))) ranks.push_back(unpack_state(packed));
  for (const Entry& entry : entries_) {
    if (entry.stage != stage) continue;
    StateTree::List of_all;
    for (const StateTree& rank : ranks)
      if (rank.contains(entry.name))
        for (const StateTree& state : rank.at(entry.name).as_list()) of_all.push_back(state);
    load_merged(*entry.metric, of_all);
  }
}

void MetricStore::log_value(const Entry& entry, LogStore& logs, std::vector<Matrix>& matrices) {
  if (entry.metric->updates() == 0)
    throw Error(cat("[module.log] '", entry.name,
                    "' was logged, but the metric got no batch in this epoch. Call its update() before log()."));
  const at::NoGradGuard no_grad;
  const Tensor value = entry.metric->compute();
  if (!value.defined()) throw Error(cat("[module.log] compute() of '", entry.name, "' returned an undefined tensor."));
  const auto log_one = [&](const std::string& name, const Tensor& number) {
    // All ranks have the same value, or none.
    logs.log(name, entry.stage == RunningStage::train ? LogScope::train_epoch : LogScope::evaluation_epoch, entry.stage,
             number, 1, {.prog_bar = entry.options.prog_bar, .logger = entry.options.logger, .reduce_fx = Reduce::max});
  };
  if (value.dim() == 0) return log_one(entry.name, value);
  if (value.dim() == 2) {
    if (entry.options.logger) matrices.push_back({entry.name, value, entry.metric->matrix_axes()});
    return;
  }
  const std::vector<std::string> names = entry.metric->value_names(value.size(0));
  if (value.dim() > 3 || static_cast<int64_t>(names.size()) != value.size(0))
    throw Error(cat("[module.log] compute() of '", entry.name,
                    "' must return a scalar, a matrix, or one of them per name of value_names(); got ",
                    shape_text(value.sizes()), " for ", names.size(), " names."));
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor part = value.select(0, static_cast<int64_t>(i));
    if (part.dim() == 0)
      log_one(entry.name + names[i], part);
    else if (entry.options.logger)
      matrices.push_back({entry.name + names[i], part, entry.metric->matrix_axes()});
  }
}

void MetricStore::reset(RunningStage stage) {
  for (const Entry& entry : entries_)
    if (entry.stage == stage) entry.metric->reset();
  std::erase_if(entries_, [&](const Entry& entry) { return entry.stage == stage; });
}

bool MetricStore::may_log(std::string_view final_name) const {
  // The names of a vector's values are known only at the end.
  return std::ranges::any_of(entries_, [&](const Entry& entry) { return final_name.starts_with(entry.name); });
}

void MetricStore::start_recording(RunningStage stage) {
  updates_before_.clear();
  for (const Entry& entry : entries_) {
    if (entry.stage != stage) continue;
    if (entry.metric->keeps_lists()) refuse_lists(entry.name);
    updates_before_.emplace(entry.metric, entry.metric->updates());
  }
  recording_ = true;
}

std::vector<MetricStore::Updates> MetricStore::take_recording() {
  recording_ = false;
  std::vector<Updates> recorded;
  for (const Entry& entry : entries_) {
    const auto found = updates_before_.find(entry.metric);
    if (found == updates_before_.end()) continue;
    const int64_t count = entry.metric->updates() - found->second;
    if (count > 0) recorded.push_back({entry, count});
    ComponentAccess::set_updates(*entry.metric, found->second);
  }
  updates_before_.clear();
  return recorded;
}

void MetricStore::after_replay(const std::vector<Updates>& recorded) {
  for (const Updates& updates : recorded) {
    remember(updates.of);
    ComponentAccess::set_updates(*updates.of.metric, updates.of.metric->updates() + updates.count);
  }
}

StateTree MetricStore::states(RunningStage stage) const {
  StateTree states = stage == RunningStage::train ? pending_ : StateTree();
  for (const Entry& entry : entries_)
    if (entry.stage == stage) states[entry.name] = StateTree::List{entry.metric->state()};
  return states;
}

StateTree MetricStore::state() const { return states(RunningStage::train); }

StateTree MetricStore::of_rank(const std::vector<const StateTree*>& ranks, bool continues) {
  StateTree all;
  if (!continues) return all;
  for (const StateTree* states : ranks)
    for (const auto& [name, list] : states->as_map()) {
      if (!all.contains(name)) all[name] = StateTree::List();
      for (const StateTree& state : list.as_list()) all[name].as_list().push_back(state);
    }
  return all;
}

MetricStore::Mark MetricStore::mark() const {
  Mark mark{.objects = {}, .pending = pending_};
  for (const Entry& entry : entries_)
    if (entry.stage == RunningStage::train) mark.objects.emplace_back(entry, copy_state(entry.metric->state()));
  return mark;
}

void MetricStore::restore(const Mark& mark) {
  reset(RunningStage::train);
  pending_ = mark.pending;
  for (const auto& [entry, state] : mark.objects) {
    entries_.push_back(entry);
    entry.metric->load_state(state);
  }
}

}  // namespace fulgur::detail
