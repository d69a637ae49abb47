#include "logging/log_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "fulgur/core/device/moved_to.h"
#include "fulgur/core/state/cpu_scalar.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool same_options(const LogOptions& a, const LogOptions& b) {
  return a.prog_bar == b.prog_bar && a.logger == b.logger && a.on_step == b.on_step && a.on_epoch == b.on_epoch &&
         a.reduce_fx == b.reduce_fx && a.sync_dist == b.sync_dist;
}

void check_scalar(std::string_view name, const Tensor& value) {
  if (!value.defined()) throw Error(cat("[module.log] '", name, "' is an undefined tensor. Log a scalar."));
  if (value.numel() != 1)
    throw Error(cat("[module.log] '", name, "' must be a scalar; got a tensor of ", value.numel(),
                    " elements. Reduce it first, for example with .mean()."));
}

}  // namespace

double LogStore::start_value(Reduce reduce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return reduce == Reduce::min ? kInfinity : reduce == Reduce::max ? -kInfinity : 0;
}

void LogStore::take_options(Slot& slot, const LogOptions& options) {
  const bool step_scope = slot.scope == LogScope::train_step;
  slot.options = options;
  slot.on_step = options.on_step.value_or(step_scope);
  slot.on_epoch = options.on_epoch.value_or(!step_scope);
  if (slot.on_step && (slot.scope == LogScope::train_epoch || slot.scope == LogScope::evaluation_epoch))
    throw Error(cat("[module.log] '", slot.name,
                    "' is logged from an epoch hook, where on_step is impossible. Leave on_step out."));
  if (!slot.on_step && !slot.on_epoch)
    throw Error(cat("[module.log] '", slot.name,
                    "' is logged with on_step and on_epoch both false, so it would never appear."));
}

LogStore::Slot& LogStore::slot(std::string_view name, LogScope scope, RunningStage stage, const LogOptions& options) {
  const auto found = index_.find(Key{name, scope, stage});
  if (found != index_.end()) {
    Slot& there = *found->second;
    if (!same_options(there.options, options)) {
      if (!there.of_checkpoint)
        throw Error(cat("[module.log] '", name,
                        "' was logged before with other options in the same hook. Use one set of options per name."));
      // The code has changed since the checkpoint was made. Values gathered by another reduction are meaningless here.
      if (there.options.reduce_fx != options.reduce_fx) {
        there.step = there.epoch = {};
        there.step.value = there.epoch.value = start_value(options.reduce_fx);
      }
      take_options(there, options);
    }
    there.of_checkpoint = false;
    return there;
  }
  if (scope == LogScope::forbidden)
    throw Error(cat("[module.log] '", name,
                    "' cannot be logged from this hook. Log from a step, a batch hook, or an epoch hook."));
  if (name.empty()) throw Error("[module.log] a metric needs a name.");
  auto made = std::make_shared<Slot>();
  made->name = name;
  made->scope = scope;
  made->stage = stage;
  take_options(*made, options);
  made->step.value = made->epoch.value = start_value(options.reduce_fx);
  made->monitored = monitored_.contains(made->name) || (made->on_epoch && monitored_.contains(made->name + "_step"));
  Slot& made_slot = *made;
  slots_.push_back(std::move(made));
  index_.emplace(Key{made_slot.name, scope, stage}, &made_slot);
  return made_slot;
}

void LogStore::accumulate(double& to, double value, Reduce reduce) {
  switch (reduce) {
    case Reduce::mean:
    case Reduce::sum:
      to += value;
      break;
    // NaN must stay visible: std::min would drop it.
    case Reduce::min:
      to = value < to || value != value ? value : to;
      break;
    case Reduce::max:
      to = value > to || value != value ? value : to;
      break;
    case Reduce::last:
      to = value;
      break;
  }
}

void LogStore::add(Accumulator& to, double value, double weight, Reduce reduce) {
  accumulate(to.value, reduce == Reduce::mean ? value * weight : value, reduce);
  to.weight = reduce == Reduce::last ? weight : to.weight + weight;
  ++to.count;
}

// A sum is kept in one place at a time, so that its bits do not depend on whether it was read, or a checkpoint was
// saved, between two of its values.
double LogStore::move_to_device(Accumulator& a, Reduce reduce) {
  a.device_used = true;
  a.device_factor = 1;
  a.device_weight += std::exchange(a.weight, 0);
  return std::exchange(a.value, start_value(reduce));
}

void LogStore::add_device(Accumulator& to, DeviceScalars& of, const Tensor& value, double weight, Reduce reduce) {
  at::NoGradGuard no_grad;
  const Tensor scalar = value.dim() == 0 ? value : value.reshape({});
  if (recording_on_) {
    // Memory of the recording does not belong to the store.
    if (!to.device.defined() && !scalar.is_cpu())
      throw Error("[module.log] a metric was logged that the earlier steps did not log.");
    recorded_.push_back({&to, weight, reduce});
  }
  if (!to.device.defined() || to.device.device() != scalar.device()) {
    if (to.device_used) fold(to, reduce, to.device.item<double>());
    to.device = of.add(scalar.device(), to.place);
  }
  if (!recording_on_) {
    if (reduce == Reduce::last) to.device_weight = 0;
    to.device_weight += weight;
    if (to.count++ == 0) {
      to.device_used = true;
      to.device.copy_(scalar, /*non_blocking=*/true);
      to.device_factor = reduce == Reduce::mean ? weight : 1;
      return;
    }
    if (!to.device_used) to.device.fill_(move_to_device(to, reduce));
    if (const double factor = std::exchange(to.device_factor, 1); factor != 1) to.device.mul_(factor);
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
}

void LogStore::remember(const Tensor& value, Accumulator& to) {
  if (!value.has_storage() || !value.unsafeGetTensorImpl()->version_counter().enabled()) return;
  const auto recorded = recording_on_ ? std::optional(recorded_.size() - 1) : std::nullopt;
  logged_in_batch_.push_back({value.storage(), value.const_data_ptr(),
                              value.unsafeGetTensorImpl()->version_counter().current_version(), &to, recorded});
}

void LogStore::watch(const Tensor& value) {
  if (value.has_storage() && value.unsafeGetTensorImpl()->version_counter().enabled()) {
    const uint32_t version = value.unsafeGetTensorImpl()->version_counter().current_version();
    for (LoggedInBatch& logged : logged_in_batch_) {
      if (logged.data != value.const_data_ptr() || logged.version != version) continue;
      // The window's sum may contain only such values: any other non-finite value would be mistaken for one of them.
      if (logged.recorded) {
        recorded_[*logged.recorded].watched = true;
        return;
      }
      if (logged.to->watched + 1 != logged.to->count) continue;
      ++logged.to->watched;
      return;
    }
  }
  const Tensor here = watch_.device.defined() && watch_.device.device() != value.device()
                          ? detail::moved_to(value.detach(), watch_.device.device())
                          : value;
  add_device(watch_, scalars(RunningStage::train, /*epoch=*/false), here, 0, Reduce::sum);
}

void LogStore::forget_watched() {
  restart(watch_, Reduce::sum);
  for (auto& s : slots_) s->step.watched = 0;
}

void LogStore::discard_watched() {
  for (auto& s : slots_)
    if (s->step.watched > 0) restart(s->step, s->options.reduce_fx);
  forget_watched();
}

void LogStore::start_noting(at::Device device) {
  noting_on_ = device;
  noted_.clear();
  if (device.is_cpu() && !recording_on_ && !watch_.device.defined())
    watch_.device = scalars(RunningStage::train, /*epoch=*/false).add(device, watch_.place);
}

HostNumbers LogStore::take_noted() {
  noting_on_.reset();
  return std::exchange(noted_, {});
}

void LogStore::start_recording(at::Device device, RunningStage stage) {
  recording_on_ = device;
  records_ |= stage == RunningStage::train;
  recorded_.clear();
  start_noting(device);
}

void LogStore::before_recording(at::Device device) {
  // On the CPU the step is executed while it is recorded.
  if (device.is_cpu() && watch_.device.defined() && watch_.device.is_cpu() && !watch_.device_used)
    *watch_.device.mutable_data_ptr<double>() = 0;
}

std::vector<LogStore::Addition> LogStore::take_recording() {
  recording_on_.reset();
  return std::exchange(recorded_, {});
}

void LogStore::before_replay(const std::vector<Addition>& additions) {
  at::NoGradGuard no_grad;
  std::vector<Tensor> zero;
  for (const Addition& addition : additions) {
    if (addition.is_of_host()) continue;
    Accumulator& to = *addition.to;
    if (to.device_used) {
      if (const double factor = std::exchange(to.device_factor, 1); factor != 1) to.device.mul_(factor);
    } else if (const double start = move_to_device(to, addition.reduce); start == 0) {
      zero.push_back(to.device);
    } else {
      to.device.fill_(start);
    }
  }
  if (!zero.empty()) at::_foreach_zero_(zero);
}

void LogStore::after_replay(const std::vector<Addition>& additions) {
  for (const Addition& addition : additions) {
    if (addition.is_of_host()) {
      const double value = addition.number ? *addition.number : cpu_scalar(addition.value);
      add(*addition.to, value, addition.weight, addition.reduce);
    } else {
      if (addition.reduce == Reduce::last) addition.to->device_weight = 0;
      addition.to->device_weight += addition.weight;
      ++addition.to->count;
    }
    if (addition.watched) ++addition.to->watched;
  }
}

void LogStore::after_execution(const std::vector<Addition>& additions) {
  for (const Addition& addition : additions)
    if (!addition.is_of_host() && !addition.to->device_used) move_to_device(*addition.to, addition.reduce);
  after_replay(additions);
}

bool LogStore::same_additions(const std::vector<Addition>& one, const std::vector<Addition>& other) {
  return std::ranges::equal(one, other, [](const Addition& a, const Addition& b) {
    return a.to == b.to && a.weight == b.weight && a.reduce == b.reduce && a.value.defined() == b.value.defined() &&
           a.number.has_value() == b.number.has_value() &&
           std::bit_cast<uint64_t>(a.number.value_or(0)) == std::bit_cast<uint64_t>(b.number.value_or(0));
  });
}

void LogStore::fold(Accumulator& a, Reduce reduce, double value) {
  value *= std::exchange(a.device_factor, 1);
  a.device_used = false;
  const double weight = std::exchange(a.device_weight, 0);
  accumulate(a.value, value, reduce);
  a.weight = reduce == Reduce::last ? weight : a.weight + weight;
}

void LogStore::fold(Accumulator& a, Reduce reduce, const DeviceScalars::Reading& reading) {
  if (a.device_used) fold(a, reduce, reading.at(a.place));
}

double LogStore::finish(const Accumulator& a, Reduce reduce) {
  return reduce == Reduce::mean ? a.value / a.weight : a.value;
}

void LogStore::log(std::string_view name, LogScope scope, RunningStage stage, double value, double weight,
                   const LogOptions& options) {
  Slot& s = slot(name, scope, stage, options);
  s.has_steps |= s.on_step;
  if (noting_on_) noted_.emplace_back(s.name, value);
  add_number(s, value, weight);
}

void LogStore::add_number(Slot& s, double value, double weight) {
  const auto add_to = [&](Accumulator& to, Reduce reduce) {
    if (recording_on_)
      recorded_.push_back({&to, weight, reduce, value});
    else
      add(to, value, weight, reduce);
  };
  if (s.on_step) add_to(s.step, s.options.reduce_fx);
  if (s.on_step && s.monitored) {
    const auto [latest, reduce] = latest_in_batch(s);
    add_to(latest, reduce);
  }
  if (s.on_epoch) add_to(s.epoch, s.options.reduce_fx);
}

void LogStore::log(std::string_view name, LogScope scope, RunningStage stage, const Tensor& value, double weight,
                   const LogOptions& options) {
  check_scalar(name, value);
  const bool of_cpu_step = value.is_cpu() && noting_on_ && noting_on_->is_cpu();
  if (value.is_cpu() && !of_cpu_step) return log(name, scope, stage, cpu_scalar(value), weight, options);
  Slot& s = slot(name, scope, stage, options);
  s.has_steps |= s.on_step;
  if (of_cpu_step && !recording_on_) return add_number(s, cpu_scalar(value), weight);
  const at::NoGradGuard no_grad;
  // The step may write to the tensor later on.
  const Tensor copied = of_cpu_step ? value.detach().clone() : Tensor();
  const auto add_to = [&](Accumulator& to, bool epoch, Reduce reduce) {
    if (of_cpu_step)
      recorded_.push_back({.to = &to, .weight = weight, .reduce = reduce, .value = copied});
    else
      add_device(to, scalars(stage, epoch), value, weight, reduce);
  };
  if (s.on_step) {
    add_to(s.step, /*epoch=*/false, options.reduce_fx);
    const bool sums = options.reduce_fx == Reduce::mean || options.reduce_fx == Reduce::sum;
    if (sums && stage == RunningStage::train) remember(value, s.step);
  }
  if (s.on_step && s.monitored) {
    const auto [latest, reduce] = latest_in_batch(s);
    add_to(latest, /*epoch=*/false, reduce);
  }
  if (s.on_epoch) add_to(s.epoch, /*epoch=*/true, options.reduce_fx);
}

void LogStore::publish(const std::string& name, double value, RunningStage stage) {
  taken_.stages.insert_or_assign(name, stage);
  if (stage == RunningStage::validate) taken_.validated.insert_or_assign(name, value);
  const auto found = std::ranges::find_if(taken_.published, [&](const auto& item) { return item.first == name; });
  if (found == taken_.published.end())
    taken_.published.emplace_back(name, value);
  else
    found->second = value;
}

void LogStore::reset(RunningStage stage) {
  ++discards_;
  asked_.clear();
  if (stage == RunningStage::validate) taken_.validated.clear();
  std::erase_if(index_, [&](const auto& item) { return item.first.stage == stage; });
  std::erase_if(slots_, [&](const auto& s) { return s->stage == stage; });
  std::erase_if(taken_.published, [&](const auto& item) {
    const auto found = taken_.stages.find(item.first);
    return found != taken_.stages.end() && found->second == stage;
  });
  std::erase_if(taken_.stages, [&](const auto& item) { return item.second == stage; });
}

bool LogStore::Slot::steps_are(std::string_view final_name) const {
  if (!on_step) return false;
  if (name != final_name) return on_epoch && name + "_step" == final_name;
  // The epoch has ended since the last step: its value is the newest, though the step window is still open.
  return !on_epoch || epoch.count > 0;
}

std::optional<double> LogStore::running(std::string_view final_name, RunningStage stage) {
  for (auto& s : slots_) {
    if (s->stage != stage || s->step.count == 0 || !s->steps_are(final_name)) continue;
    if (s->step.device_used) read_running(stage);
    return finish(s->step, s->options.reduce_fx);
  }
  return std::nullopt;
}

std::optional<double> LogStore::newest(std::string_view final_name) {
  if (const auto value = running(final_name, RunningStage::validate)) return value;
  if (const auto found = taken_.validated.find(final_name); found != taken_.validated.end()) return found->second;
  for (const RunningStage stage : {RunningStage::train, RunningStage::test, RunningStage::predict})
    if (const auto value = running(final_name, stage)) return value;
  return written(final_name);
}

void LogStore::monitor(const std::vector<std::string>& final_names) {
  monitored_.insert(final_names.begin(), final_names.end());
}

const LogStore::Slot* LogStore::latest_of(std::string_view final_name, RunningStage stage) const {
  for (const auto& s : slots_)
    if (s->stage == stage && s->latest.value.count > 0 && s->steps_are(final_name)) return s.get();
  return nullptr;
}

std::pair<LogStore::Accumulator&, Reduce> LogStore::latest_in_batch(Slot& slot) const {
  Slot::Latest& latest = slot.latest;
  if (records_ || slot.stage != RunningStage::train) {
    // A recorded step has one call, whose launches replace the value.
    latest.of_one_call = true;
  } else if (latest.batch != batch_) {
    latest = {.value = std::move(latest.value), .batch = batch_, .of_one_call = false};
    restart(latest.value, slot.options.reduce_fx);
  }
  return {latest.value, latest_reduce(slot)};
}

double LogStore::latest_value(const Slot& slot) {
  Accumulator latest = slot.latest.value;
  if (latest.device_used) {
    const DeviceScalars::Reading reading = scalars(slot.stage, /*epoch=*/false).read();
    reading.wait();
    fold(latest, latest_reduce(slot), reading);
  }
  return finish(latest, latest_reduce(slot));
}

std::optional<double> LogStore::written(std::string_view final_name) const {
  if (const auto found = taken_.validated.find(final_name); found != taken_.validated.end()) return found->second;
  for (const auto& [name, value] : taken_.published)
    if (name == final_name) return value;
  return std::nullopt;
}

std::optional<RunningStage> LogStore::stage_of(std::string_view final_name) const {
  if (taken_.validated.contains(final_name)) return RunningStage::validate;
  const auto found = taken_.stages.find(final_name);
  if (found != taken_.stages.end()) return found->second;
  for (const auto& s : slots_)
    if (s->has_steps && s->name == final_name) return s->stage;
  return std::nullopt;
}

std::vector<std::string> LogStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : taken_.published) names.push_back(name);
  for (const auto& s : slots_)
    if (s->on_step && std::ranges::find(names, s->name) == names.end()) names.push_back(s->name);
  return names;
}

std::vector<std::string> LogStore::known_names() const {
  std::vector<std::string> names = this->names();
  for (const auto& s : slots_) {
    names.push_back(s->name);
    if (!s->on_step || !s->on_epoch) continue;
    names.push_back(s->name + "_step");
    names.push_back(s->name + "_epoch");
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace fulgur::detail
