// From the current windows of logged values to the values of a row.
#include <algorithm>
#include <cmath>
#include <utility>

#include "fulgur/core/text/text.h"
#include "logging/log_store.h"

namespace fulgur::detail {

void LogStore::restart(Accumulator& a, Reduce reduce) {
  a.value = start_value(reduce);
  a.weight = a.device_weight = 0;
  a.count = a.watched = 0;
  a.device_used = false;
  a.device_factor = 1;
}

void LogStore::combine(Accumulator& to, const Accumulator& from, Reduce reduce) {
  if (from.count == 0) return;
  if (reduce != Reduce::last || to.count == 0) accumulate(to.value, from.value, reduce);
  to.weight += from.weight;
  to.count += from.count;
}

LogStore::Window LogStore::close(RunningStage stage, bool epoch) {
  Window window;
  window.stage_ = stage;
  window.epoch_ = epoch;
  bool on_device = false;
  for (auto& s : slots_) {
    Accumulator& a = epoch ? s->epoch : s->step;
    if (s->stage != stage || !(epoch ? s->on_epoch : s->on_step) || a.count == 0) continue;
    on_device |= a.device_used;
    window.values_.emplace_back(s, a);
    restart(a, s->options.reduce_fx);
  }
  if (stage == RunningStage::train && !epoch && watch_.count > 0) {
    on_device = true;
    window.watch_ = watch_;
    restart(watch_, Reduce::sum);
  }
  if (on_device) window.reading_ = scalars(stage, epoch).read();
  return window;
}

bool LogStore::finite(const Accumulator& a, const DeviceScalars::Reading& reading) {
  return std::isfinite(a.value) && (!a.device_used || std::isfinite(reading.at(a.place)));
}

bool LogStore::Window::finite() const {
  reading_.wait();
  return (!watch_ || LogStore::finite(*watch_, reading_)) && std::ranges::all_of(values_, [&](const Running& r) {
           return r.second.watched == 0 || LogStore::finite(r.second, reading_);
         });
}

bool LogStore::watched_is_finite() {
  const DeviceScalars::Reading reading = scalars(RunningStage::train, /*epoch=*/false).read();
  reading.wait();
  return finite(watch_, reading) && std::ranges::all_of(slots_, [&](const auto& s) {
           return s->stage != RunningStage::train || s->step.watched == 0 || finite(s->step, reading);
         });
}

Metrics LogStore::take(Window window, Collectives* collectives) {
  window.reading_.wait();
  // The results of a failed exchange are undefined.
  if (collectives) collectives->check();
  for (auto& [slot, a] : window.values_) fold(a, slot->options.reduce_fx, window.reading_);
  if (!collectives)
    std::erase_if(window.values_,
                  [&](const Running& running) { return window.epoch_ || running.first->options.sync_dist; });
  else if (collectives->world_size() > 1)
    merge(window, *collectives);
  Metrics values;
  for (const auto& [slot, a] : window.values_) {
    const double value = finish(a, slot->options.reduce_fx);
    const bool forked = slot->on_step && slot->on_epoch;
    const std::string name = forked ? cat(slot->name, window.epoch_ ? "_epoch" : "_step") : slot->name;
    publish(name, value, window.stage_);
    if (forked) publish(slot->name, value, window.stage_);
    if (slot->options.logger) values.emplace_back(name, value);
  }
  return values;
}

void LogStore::read_running(RunningStage stage) {
  const DeviceScalars::Reading reading = scalars(stage, /*epoch=*/false).read();
  reading.wait();
  for (auto& s : slots_)
    if (s->stage == stage && s->on_step) fold(s->step, s->options.reduce_fx, reading);
}

void LogStore::receive_asked() {
  std::erase_if(asked_, [&](Asked& asked) {
    if (!asked.reading.there()) return false;
    for (auto& [slot, a] : asked.values) {
      fold(a, slot->options.reduce_fx, asked.reading);
      shown_[slot->name] = finish(a, slot->options.reduce_fx);
    }
    return true;
  });
}

Metrics LogStore::progress_values() {
  receive_asked();
  if (asked_.empty()) {
    std::map<RunningStage, std::vector<Running>> wanted;
    for (const auto& s : slots_)
      if (s->options.prog_bar && s->on_step && s->step.device_used) wanted[s->stage].emplace_back(s, s->step);
    for (auto& [stage, values] : wanted) asked_.push_back({std::move(values), scalars(stage, /*epoch=*/false).read()});
    receive_asked();
  }
  Metrics values;
  for (const auto& s : slots_) {
    if (!s->options.prog_bar) continue;
    std::optional<double> value = written(s->name);
    if (s->on_step && s->step.count > 0) {
      if (!s->step.device_used)
        value = finish(s->step, s->options.reduce_fx);
      else if (const auto found = shown_.find(s->name); found != shown_.end())
        value = found->second;
    }
    if (value) values.emplace_back(s->name, *value);
  }
  return values;
}

}  // namespace fulgur::detail
