#include "log_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "fulgur/core/errors.h"
#include "fulgur/core/state_bytes.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

double start_value(Reduce reduce) {
  switch (reduce) {
    case Reduce::min:
      return std::numeric_limits<double>::infinity();
    case Reduce::max:
      return -std::numeric_limits<double>::infinity();
    default:
      return 0;
  }
}

bool same_options(const LogOptions& a, const LogOptions& b) {
  return a.prog_bar == b.prog_bar && a.logger == b.logger && a.on_step == b.on_step && a.on_epoch == b.on_epoch &&
         a.reduce_fx == b.reduce_fx && a.sync_dist == b.sync_dist;
}

void check_scalar(std::string_view name, const Tensor& value) {
  if (!value.defined()) throw Error(cat("[module.log] '", name, "' is an undefined tensor. Log a scalar."));
  if (value.numel() != 1)
    throw Error(cat("[module.log] '", name, "' must be a scalar; got a tensor of ", static_cast<int64_t>(value.numel()),
                    " elements. Reduce it first, for example with .mean()."));
}

// The value of a scalar on the CPU. item() goes through the dispatcher, which costs more than all the rest of log().
double read_cpu(const Tensor& value) {
  if (value.layout() == at::kStrided && !value.is_neg()) {
    if (value.scalar_type() == at::kFloat) return static_cast<double>(*value.const_data_ptr<float>());
    if (value.scalar_type() == at::kDouble) return *value.const_data_ptr<double>();
  }
  return value.item<double>();
}

}  // namespace

LogStore::Slot& LogStore::slot(std::string_view name, LogScope scope, Stage stage, const LogOptions& options) {
  const auto found = index_.find(Key{name, scope, stage});
  if (found != index_.end()) {
    if (!same_options(found->second->options, options))
      throw Error(cat("[module.log] '", name,
                      "' was logged before with other options in the same hook. Use one set of options per name."));
    return *found->second;
  }
  if (scope == LogScope::forbidden)
    throw Error(cat("[module.log] '", name,
                    "' cannot be logged from this hook. Log from a step, a batch hook, or an epoch hook."));
  if (name.empty()) throw Error("[module.log] a metric needs a name.");
  auto made = std::make_unique<Slot>();
  made->name = name;
  made->scope = scope;
  made->stage = stage;
  made->options = options;
  const bool step_scope = scope == LogScope::train_step;
  made->on_step = options.on_step.value_or(step_scope);
  made->on_epoch = options.on_epoch.value_or(!step_scope);
  if (made->on_step && (scope == LogScope::train_epoch || scope == LogScope::evaluation_epoch))
    throw Error(
        cat("[module.log] '", name, "' is logged from an epoch hook, where on_step is impossible. Leave on_step out."));
  if (!made->on_step && !made->on_epoch)
    throw Error(
        cat("[module.log] '", name, "' is logged with on_step and on_epoch both false, so it would never appear."));
  made->step.value = made->epoch.value = start_value(options.reduce_fx);
  Slot& made_slot = *made;
  slots_.push_back(std::move(made));
  index_.emplace(Key{made_slot.name, scope, stage}, &made_slot);
  return made_slot;
}

void LogStore::add(Accumulator& to, double value, double weight, Reduce reduce) {
  switch (reduce) {
    case Reduce::mean:
      to.value += value * weight;
      break;
    case Reduce::sum:
      to.value += value;
      break;
    // NaN must stay visible: std::min would drop it.
    case Reduce::min:
      to.value = value < to.value || value != value ? value : to.value;
      break;
    case Reduce::max:
      to.value = value > to.value || value != value ? value : to.value;
      break;
    case Reduce::last:
      to.value = value;
      break;
  }
  to.weight += weight;
  ++to.count;
}

void LogStore::make_device(Accumulator& to, at::Device device, Reduce reduce) {
  if (to.device.defined() && to.device.device() == device) return;
  fold_device(to, reduce);
  // A tensor of inference mode could not be written to outside of it.
  const c10::InferenceMode normal(false);
  to.device = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
}

void LogStore::add_device(Accumulator& to, const Tensor& value, double weight, Reduce reduce) {
  at::NoGradGuard no_grad;
  const Tensor scalar = value.dim() == 0 ? value : value.reshape({});
  if (recording_on_) {
    // Memory of the recording is not the store's.
    if (!to.device.defined() && !scalar.is_cpu())
      throw Error("[module.log] a metric was logged that the steps before did not log.");
    recorded_.push_back({&to, weight, reduce});
  }
  make_device(to, scalar.device(), reduce);
  if (!recording_on_ && !to.device_used) {
    to.device.fill_(start_value(reduce));
    to.device_used = true;
  }
  switch (reduce) {
    case Reduce::mean:
      to.device.add_(scalar, weight);
      break;
    case Reduce::sum:
      to.device.add_(scalar);
      break;
    case Reduce::min:
      at::minimum_out(to.device, to.device, scalar.to(at::kDouble));
      break;
    case Reduce::max:
      at::maximum_out(to.device, to.device, scalar.to(at::kDouble));
      break;
    case Reduce::last:
      to.device.copy_(scalar, /*non_blocking=*/true);
      break;
  }
  if (recording_on_) return;
  to.device_weight += weight;
  ++to.count;
}

void LogStore::start_watching(at::Device device) {
  watching_on_ = device;
  watched_.clear();
}

HostNumbers LogStore::take_watched() {
  watching_on_.reset();
  return std::exchange(watched_, {});
}

void LogStore::start_recording(at::Device device) {
  recording_on_ = device;
  recorded_.clear();
  start_watching(device);
}

std::vector<LogStore::Addition> LogStore::take_recording() {
  recording_on_.reset();
  return std::exchange(recorded_, {});
}

void LogStore::before_replay(const std::vector<Addition>& additions) {
  at::NoGradGuard no_grad;
  for (const Addition& addition : additions) {
    if (addition.number || addition.to->device_used) continue;
    addition.to->device.fill_(start_value(addition.reduce));
    addition.to->device_used = true;
  }
}

void LogStore::after_replay(const std::vector<Addition>& additions) {
  for (const Addition& addition : additions) {
    if (addition.number) {
      add(*addition.to, *addition.number, addition.weight, addition.reduce);
      continue;
    }
    addition.to->device_weight += addition.weight;
    ++addition.to->count;
  }
}

void LogStore::fold_device(Accumulator& a, Reduce reduce) {
  if (a.device_used) fold(a, reduce, a.device.item<double>());
}

void LogStore::fold_devices(const std::vector<std::pair<Accumulator*, Reduce>>& accumulators) {
  std::map<std::string, std::vector<std::pair<Accumulator*, Reduce>>> by_device;
  for (const auto& pair : accumulators)
    if (pair.first->device_used) by_device[pair.first->device.device().str()].push_back(pair);
  for (const auto& [device, those] : by_device) {
    std::vector<Tensor> scalars;
    for (const auto& [accumulator, reduce] : those) scalars.push_back(accumulator->device);
    const Tensor values = at::stack(scalars).cpu();
    for (size_t i = 0; i < those.size(); ++i)
      fold(*those[i].first, those[i].second, values.const_data_ptr<double>()[i]);
  }
}

void LogStore::fold(Accumulator& a, Reduce reduce, double value) {
  a.device_used = false;
  const double weight = a.device_weight;
  a.device_weight = 0;
  switch (reduce) {
    case Reduce::mean:
    case Reduce::sum:
      a.value += value;
      break;
    case Reduce::min:
      a.value = value < a.value || value != value ? value : a.value;
      break;
    case Reduce::max:
      a.value = value > a.value || value != value ? value : a.value;
      break;
    case Reduce::last:
      a.value = value;
      break;
  }
  a.weight += weight;
}

double LogStore::finish(Accumulator& a, Reduce reduce) {
  fold_device(a, reduce);
  return reduce == Reduce::mean ? a.value / a.weight : a.value;
}

void LogStore::log(std::string_view name, LogScope scope, Stage stage, double value, double weight,
                   const LogOptions& options) {
  Slot& s = slot(name, scope, stage, options);
  if (watching_on_) watched_.emplace_back(s.name, value);
  add_number(s, value, weight);
}

void LogStore::add_number(Slot& s, double value, double weight) {
  const Reduce reduce = s.options.reduce_fx;
  for (Accumulator* to : {s.on_step ? &s.step : nullptr, s.on_epoch ? &s.epoch : nullptr}) {
    if (!to) continue;
    if (recording_on_)
      recorded_.push_back({to, weight, reduce, value});
    else
      add(*to, value, weight, reduce);
  }
}

void LogStore::log(std::string_view name, LogScope scope, Stage stage, const Tensor& value, double weight,
                   const LogOptions& options) {
  check_scalar(name, value);
  const bool device_is_cpu = watching_on_ && watching_on_->is_cpu();
  if (value.is_cpu() && !device_is_cpu) return log(name, scope, stage, read_cpu(value), weight, options);
  Slot& s = slot(name, scope, stage, options);
  if (value.is_cpu() && !recording_on_) return add_number(s, read_cpu(value), weight);
  if (s.on_step) add_device(s.step, value, weight, options.reduce_fx);
  if (s.on_epoch) add_device(s.epoch, value, weight, options.reduce_fx);
}

void LogStore::publish(const std::string& name, double value, Stage stage) {
  stages_.insert_or_assign(name, stage);
  const auto found =
      std::find_if(published_.begin(), published_.end(), [&](const auto& item) { return item.first == name; });
  if (found == published_.end())
    published_.emplace_back(name, value);
  else
    found->second = value;
}

Metrics LogStore::take_step_values(Stage stage) {
  Metrics values;
  read_running(stage, /*epoch=*/false);
  for (auto& s : slots_) {
    if (s->stage != stage || !s->on_step || s->step.count == 0) continue;
    const double value = finish(s->step, s->options.reduce_fx);
    start_anew(s->step, s->options.reduce_fx);
    const std::string name = s->on_epoch ? s->name + "_step" : s->name;
    publish(name, value, stage);
    if (s->on_epoch) publish(s->name, value, stage);
    if (s->options.logger) values.emplace_back(name, value);
  }
  return values;
}

Metrics LogStore::take_epoch_values(Stage stage) {
  Metrics values;
  read_running(stage, /*epoch=*/true);
  for (auto& s : slots_) {
    if (s->stage != stage || !s->on_epoch || s->epoch.count == 0) continue;
    const double value = finish(s->epoch, s->options.reduce_fx);
    start_anew(s->epoch, s->options.reduce_fx);
    const std::string name = s->on_step ? s->name + "_epoch" : s->name;
    publish(name, value, stage);
    if (s->on_step) publish(s->name, value, stage);
    if (s->options.logger) values.emplace_back(name, value);
  }
  return values;
}

void LogStore::read_running(Stage stage, bool epoch) {
  std::vector<std::pair<Accumulator*, Reduce>> wanted;
  for (auto& s : slots_) {
    Accumulator& a = epoch ? s->epoch : s->step;
    if (s->stage == stage && (epoch ? s->on_epoch : s->on_step) && a.count > 0)
      wanted.emplace_back(&a, s->options.reduce_fx);
  }
  fold_devices(wanted);
}

bool LogStore::has_step_values(Stage stage) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const auto& s) { return s->stage == stage && s->on_step && s->step.count > 0; });
}

void LogStore::reset(Stage stage) {
  std::erase_if(index_, [&](const auto& item) { return item.first.stage == stage; });
  std::erase_if(slots_, [&](const auto& s) { return s->stage == stage; });
  std::erase_if(published_, [&](const auto& item) {
    const auto found = stages_.find(item.first);
    return found != stages_.end() && found->second == stage;
  });
  std::erase_if(stages_, [&](const auto& item) { return item.second == stage; });
}

std::optional<double> LogStore::newest(std::string_view final_name) {
  for (auto& s : slots_) {
    if (s->on_step && s->step.count > 0 && (s->name == final_name || (s->on_epoch && s->name + "_step" == final_name)))
      return finish(s->step, s->options.reduce_fx);
  }
  return written(final_name);
}

std::optional<double> LogStore::written(std::string_view final_name) const {
  for (const auto& [name, value] : published_)
    if (name == final_name) return value;
  return std::nullopt;
}

std::optional<Stage> LogStore::stage_of(std::string_view final_name) const {
  const auto found = stages_.find(final_name);
  if (found != stages_.end()) return found->second;
  for (const auto& s : slots_)
    if (s->on_step && s->step.count > 0 && s->name == final_name) return s->stage;
  return std::nullopt;
}

std::vector<std::string> LogStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : published_) names.push_back(name);
  for (const auto& s : slots_)
    if (s->on_step && std::find(names.begin(), names.end(), s->name) == names.end()) names.push_back(s->name);
  return names;
}

Metrics LogStore::progress_values() {
  Metrics values;
  for (const auto& s : slots_) {
    if (!s->options.prog_bar) continue;
    if (const auto value = newest(s->name)) values.emplace_back(s->name, *value);
  }
  return values;
}

namespace {

StateTree options_state(const LogOptions& options) {
  return StateTree::map({{"prog_bar", options.prog_bar},
                         {"logger", options.logger},
                         {"on_step", options.on_step ? StateTree(*options.on_step) : StateTree(nullptr)},
                         {"on_epoch", options.on_epoch ? StateTree(*options.on_epoch) : StateTree(nullptr)},
                         {"reduce", static_cast<int64_t>(options.reduce_fx)},
                         {"sync_dist", options.sync_dist}});
}

LogOptions options_from(const StateTree& state) {
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

}  // namespace

void LogStore::start_anew(Accumulator& a, Reduce reduce) {
  a.value = start_value(reduce);
  a.weight = a.device_weight = 0;
  a.count = 0;
  a.device_used = false;
}

void LogStore::combine(Accumulator& to, const Accumulator& from, Reduce reduce) {
  if (from.count == 0) return;
  switch (reduce) {
    case Reduce::mean:
    case Reduce::sum:
      to.value += from.value;
      break;
    case Reduce::min:
      to.value = from.value < to.value || from.value != from.value ? from.value : to.value;
      break;
    case Reduce::max:
      to.value = from.value > to.value || from.value != from.value ? from.value : to.value;
      break;
    case Reduce::last:
      if (to.count == 0) to.value = from.value;
      break;
  }
  to.weight += from.weight;
  to.count += from.count;
}

void LogStore::merge(Stage stage, bool epoch, Collectives& collectives) {
  if (collectives.world_size() == 1) return;
  const auto running = [epoch](Slot& s) -> Accumulator& { return epoch ? s.epoch : s.step; };
  StateTree::List own;
  read_running(stage, epoch);
  for (auto& s : slots_) {
    Accumulator& a = running(*s);
    if (s->stage != stage || !(epoch ? s->on_epoch : s->on_step) || a.count == 0) continue;
    fold_device(a, s->options.reduce_fx);
    own.push_back(StateTree::map({{"name", s->name},
                                  {"scope", static_cast<int64_t>(s->scope)},
                                  {"options", options_state(s->options)},
                                  {"value", a.value},
                                  {"weight", a.weight},
                                  {"count", a.count}}));
    start_anew(a, s->options.reduce_fx);
  }
  // In the order of ranks on each of them, so that the last bits agree.
  for (const std::string& text : collectives.gather_text(pack_state(own))) {
    const StateTree rank = unpack_state(text);
    for (const StateTree& item : rank.as_list()) {
      Slot& s = slot(item.at("name").as_string(), static_cast<LogScope>(item.at("scope").as_int()), stage,
                     options_from(item.at("options")));
      Accumulator& a = running(s);
      if (a.count > 0 && !epoch && !s.options.sync_dist) continue;
      Accumulator from;
      from.value = item.at("value").as_double();
      from.weight = item.at("weight").as_double();
      from.count = item.at("count").as_int();
      combine(a, from, s.options.reduce_fx);
    }
  }
}

void LogStore::add_running(LogStore& other) {
  for (auto& from : other.slots_) {
    Slot& to = slot(from->name, from->scope, from->stage, from->options);
    combine(to.step, from->step, from->options.reduce_fx);
    combine(to.epoch, from->epoch, from->options.reduce_fx);
  }
}

void LogStore::forget_running() {
  for (auto& s : slots_) {
    start_anew(s->step, s->options.reduce_fx);
    start_anew(s->epoch, s->options.reduce_fx);
  }
}

StateTree LogStore::state() {
  std::vector<std::pair<Accumulator*, Reduce>> all;
  for (auto& s : slots_)
    if (s->stage == Stage::train)
      all.insert(all.end(), {{&s->step, s->options.reduce_fx}, {&s->epoch, s->options.reduce_fx}});
  fold_devices(all);
  const auto accumulator = [](Accumulator& a, Reduce reduce) {
    fold_device(a, reduce);
    return StateTree::map({{"value", a.value}, {"weight", a.weight}, {"count", a.count}});
  };
  StateTree::List slots;
  for (auto& s : slots_) {
    if (s->stage != Stage::train) continue;  // evaluations are never interrupted by a checkpoint
    StateTree slot = options_state(s->options);
    slot["name"] = s->name;
    slot["scope"] = static_cast<int64_t>(s->scope);
    slot["step"] = accumulator(s->step, s->options.reduce_fx);
    slot["epoch"] = accumulator(s->epoch, s->options.reduce_fx);
    slots.push_back(std::move(slot));
  }
  StateTree::List values;
  for (const auto& [name, value] : published_)
    values.push_back(
        StateTree::map({{"name", name}, {"value", value}, {"stage", static_cast<int64_t>(stages_.at(name))}}));
  return StateTree::map({{"slots", std::move(slots)}, {"values", std::move(values)}});
}

void LogStore::load_state(const StateTree& state) {
  slots_.clear();
  index_.clear();
  published_.clear();
  stages_.clear();
  const auto accumulator = [](Accumulator& a, const StateTree& s) {
    a.value = s.at("value").as_double();
    a.weight = s.at("weight").as_double();
    a.count = s.at("count").as_int();
  };
  for (const StateTree& item : state.at("slots").as_list()) {
    Slot& s = slot(item.at("name").as_string(), static_cast<LogScope>(item.at("scope").as_int()), Stage::train,
                   options_from(item));
    accumulator(s.step, item.at("step"));
    accumulator(s.epoch, item.at("epoch"));
  }
  for (const StateTree& item : state.at("values").as_list())
    publish(item.at("name").as_string(), item.at("value").as_double(), static_cast<Stage>(item.at("stage").as_int()));
}

}  // namespace fulgur::detail
