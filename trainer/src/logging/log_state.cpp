// The part of a checkpoint that holds logged values.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "fulgur/core/state/late_number.h"
#include "logging/log_store.h"

namespace fulgur::detail {

StateTree log_options_state(const LogOptions& options) {
  return StateTree::map({{"prog_bar", options.prog_bar},
                         {"logger", options.logger},
                         {"on_step", options.on_step ? StateTree(*options.on_step) : StateTree(nullptr)},
                         {"on_epoch", options.on_epoch ? StateTree(*options.on_epoch) : StateTree(nullptr)},
                         {"reduce", static_cast<int64_t>(options.reduce_fx)},
                         {"sync_dist", options.sync_dist}});
}

LogOptions log_options_from(const StateTree& state) {
  const auto optional_bool = [](const StateTree& value) {
    return value.is_null() ? std::nullopt : std::optional(value.as_bool());
  };
  LogOptions options;
  options.prog_bar = state.at("prog_bar").as_bool();
  options.logger = state.at("logger").as_bool();
  options.on_step = optional_bool(state.at("on_step"));
  options.on_epoch = optional_bool(state.at("on_epoch"));
  options.reduce_fx = static_cast<Reduce>(state.at("reduce").as_int());
  options.sync_dist = state.at("sync_dist").as_bool();
  return options;
}

void LogStore::add_running(LogStore& other) {
  for (auto& from : other.slots_) {
    Slot& to = slot(from->name, from->scope, from->stage, from->options);
    combine(to.step, from->step, from->options.reduce_fx);
    combine(to.epoch, from->epoch, from->options.reduce_fx);
  }
}

LogStore::Mark LogStore::mark() const {
  Mark mark;
  for (const auto& s : slots_)
    if (s->stage == RunningStage::train) mark.slots[s.get()] = {s->step, s->epoch, s->latest};
  const auto values = [&](bool epoch) {
    const auto found = device_scalars_.find({RunningStage::train, epoch});
    return found == device_scalars_.end() ? DeviceScalars::Values() : found->second.values();
  };
  mark.steps = values(false);
  mark.epochs = values(true);
  mark.watch = watch_;
  return mark;
}

void LogStore::restore(const Mark& mark) {
  for (auto& s : slots_) {
    if (s->stage != RunningStage::train) continue;
    const auto found = mark.slots.find(s.get());
    if (found == mark.slots.end()) {
      restart(s->step, s->options.reduce_fx);
      restart(s->epoch, s->options.reduce_fx);
      s->latest = {.value = std::move(s->latest.value)};
      restart(s->latest.value, Reduce::last);
    } else {
      s->step = found->second.step;
      s->epoch = found->second.epoch;
      s->latest = found->second.latest;
    }
  }
  scalars(RunningStage::train, /*epoch=*/false).restore(mark.steps);
  scalars(RunningStage::train, /*epoch=*/true).restore(mark.epochs);
  watch_ = mark.watch;
}

void LogStore::forget_running() {
  for (auto& s : slots_) {
    restart(s->step, s->options.reduce_fx);
    restart(s->epoch, s->options.reduce_fx);
  }
}

StateTree LogStore::state(bool late) {
  const at::NoGradGuard no_grad;
  std::optional<DeviceScalars::Reading> steps, epochs;
  if (!late) {
    steps = scalars(RunningStage::train, /*epoch=*/false).read();
    epochs = scalars(RunningStage::train, /*epoch=*/true).read();
    steps->wait();
    epochs->wait();
  }
  const auto accumulator = [](Accumulator a, Reduce reduce, const std::optional<DeviceScalars::Reading>& reading) {
    StateTree value;
    if (a.device_used && !reading && a.value == start_value(reduce)) {
      value = late_number(a.device_factor == 1 ? a.device : a.device * a.device_factor);
      a.weight += a.device_weight;
    } else {
      if (a.device_used) fold(a, reduce, reading ? reading->at(a.place) : a.device.item<double>());
      value = a.value;
    }
    return StateTree::map({{"value", std::move(value)}, {"weight", a.weight}, {"count", a.count}});
  };
  StateTree::List slots;
  for (auto& s : slots_) {
    if (s->stage != RunningStage::train) continue;  // evaluations are never interrupted by a checkpoint
    StateTree slot = log_options_state(s->options);
    slot["name"] = s->name;
    slot["scope"] = static_cast<int64_t>(s->scope);
    slot["step"] = accumulator(s->step, s->options.reduce_fx, steps);
    slot["epoch"] = accumulator(s->epoch, s->options.reduce_fx, epochs);
    if (s->monitored) slot["latest"] = accumulator(s->latest.value, latest_reduce(*s), steps);
    if (s->monitored) slot["latest_of_one_call"] = s->latest.of_one_call;
    slots.push_back(std::move(slot));
  }
  return StateTree::map({{"slots", std::move(slots)}, {"values", published_state()}});
}

StateTree LogStore::published_state() const {
  StateTree::List values;
  for (const auto& [name, value] : taken_.published) {
    StateTree item =
        StateTree::map({{"name", name}, {"value", value}, {"stage", static_cast<int64_t>(taken_.stages.at(name))}});
    if (const auto found = taken_.validated.find(name); found != taken_.validated.end())
      item["validated"] = found->second;
    values.push_back(std::move(item));
  }
  return values;
}

void LogStore::load_state(const StateTree& state) {
  ++discards_;
  asked_.clear();
  shown_.clear();
  slots_.clear();
  index_.clear();
  taken_.published.clear();
  taken_.validated.clear();
  taken_.stages.clear();
  const auto accumulator = [](Accumulator& a, const StateTree& s) {
    a.value = s.at("value").as_double();
    a.weight = s.at("weight").as_double();
    a.count = s.at("count").as_int();
  };
  for (const StateTree& item : state.at("slots").as_list()) {
    Slot& s = slot(item.at("name").as_string(), static_cast<LogScope>(item.at("scope").as_int()), RunningStage::train,
                   log_options_from(item));
    accumulator(s.step, item.at("step"));
    accumulator(s.epoch, item.at("epoch"));
    if (item.contains("latest")) {
      s.monitored = true;
      accumulator(s.latest.value, item.at("latest"));
      s.latest.of_one_call = item.at("latest_of_one_call").as_bool();
    }
    s.of_checkpoint = true;
  }
  for (const StateTree& item : state.at("values").as_list()) {
    const std::string& name = item.at("name").as_string();
    publish(name, item.at("value").as_double(), static_cast<RunningStage>(item.at("stage").as_int()));
    if (item.contains("validated")) taken_.validated.insert_or_assign(name, item.at("validated").as_double());
  }
}

}  // namespace fulgur::detail
