#include "fulgur/optim/reduce_lr_on_plateau.h"

#include <algorithm>

#include "fulgur/core/contracts/registry.h"
#include "schedule_keys.h"

namespace fulgur {

void ReduceLROnPlateau::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(mode, "mode", "Whether a lower or a higher metric is better.");
  f(factor, "factor", "Factor by which a reduction multiplies the rate.").greater_than(0).less_than(1);
  f(patience, "patience", "Steps of the schedule without improvement that are tolerated.").at_least(0);
  f(threshold, "threshold", "Smallest improvement that counts.").at_least(0);
  f(threshold_mode, "threshold_mode", "Whether the threshold is relative to the best metric, or absolute.");
  f(cooldown, "cooldown", "Steps of the schedule that are ignored after a reduction.").at_least(0);
  f(min_lr, "min_lr", "Lowest rate.").learning_rate().at_least(0);
  f(eps, "eps", "Smaller changes of the rate are skipped.").at_least(0);
}

ReduceLROnPlateau::ReduceLROnPlateau(Options options)
    : options_(std::move(options)), best_(worst_value(options_.mode)) {}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::rel;
  if (options_.mode == MonitorMode::min)
    return metric < (relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  return metric > (relative ? best_ * (options_.threshold + 1) : best_ + options_.threshold);
}

void ReduceLROnPlateau::observe(int64_t, std::optional<double> metric) {
  if (!metric) return;
  if (is_better(*metric)) {
    best_ = *metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > options_.patience) {
    ++reductions_;
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
}

double ReduceLROnPlateau::lr_at(int64_t, double initial_lr) const {
  double lr = initial_lr;
  for (int64_t i = 0; i < reductions_; ++i) {
    const double lower = std::max(lr * options_.factor, options_.min_lr);
    if (lr - lower <= options_.eps) break;  // no later reduction changes it
    lr = lower;
  }
  return lr;
}

StateTree ReduceLROnPlateau::state() const {
  StateTree state = LrScheduler::state();
  state["best"] = best_;
  state["num_bad_epochs"] = num_bad_epochs_;
  state["cooldown_counter"] = cooldown_counter_;
  state["reductions"] = reductions_;
  return state;
}

void ReduceLROnPlateau::load_state(const StateTree& state) {
  state.at("steps").as_int();
  const double best = state.at("best").as_double();
  const int64_t bad = state.at("num_bad_epochs").as_int(), cooldown = state.at("cooldown_counter").as_int(),
                reductions = state.at("reductions").as_int();
  best_ = best;
  num_bad_epochs_ = bad;
  cooldown_counter_ = cooldown;
  reductions_ = reductions;
  LrScheduler::load_state(state);
}

[[maybe_unused]] static const bool registered_reduce_lr_on_plateau = Registry<LrScheduler>::add<ReduceLROnPlateau>(
    "ReduceLROnPlateau", "Reduces the rate when a metric stops improving.");

}  // namespace fulgur
