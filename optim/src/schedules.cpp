#include "fulgur/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fulgur/core/errors.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/text.h"

namespace fulgur {
namespace {

int64_t known_length(int64_t length, const char* schedule, const char* option) {
  if (length > 0) return length;
  throw ConfigError(cat("[optim.", schedule, "] ", option, ": auto needs the length of the run. Set ", option,
                        ", or max_steps or max_epochs with a sized loader."));
}

}  // namespace

void StepLR::Options::fields(Fields& f) {
  f(step_size, "step_size", "Steps (or epochs) between two decays.").at_least(1);
  f(gamma, "gamma", "Factor of a decay.").greater_than(0);
}

double StepLR::lr_at(int64_t steps, double initial_lr) const {
  return initial_lr * std::pow(options_.gamma, static_cast<double>(steps / options_.step_size));
}

void MultiStepLR::Options::fields(Fields& f) {
  f(milestones, "milestones", "Steps (or epochs) at which the rate decays.").required();
  f(gamma, "gamma", "Factor of a decay.").greater_than(0);
}

double MultiStepLR::lr_at(int64_t steps, double initial_lr) const {
  const auto reached = std::count_if(options_.milestones.begin(), options_.milestones.end(), [&](int64_t m) { return m <= steps; });
  return initial_lr * std::pow(options_.gamma, static_cast<double>(reached));
}

void ExponentialLR::Options::fields(Fields& f) { f(gamma, "gamma", "Factor of each step.").greater_than(0); }

double ExponentialLR::lr_at(int64_t steps, double initial_lr) const {
  return initial_lr * std::pow(options_.gamma, static_cast<double>(steps));
}

void CosineAnnealingLR::Options::fields(Fields& f) {
  f(t_max, "t_max", "Steps (or epochs) until the lowest rate; auto: the whole run.").at_least(1);
  f(eta_min, "eta_min", "Lowest rate.").at_least(0);
}

void CosineAnnealingLR::set_total_steps(int64_t steps) { t_max_ = options_.t_max.value.value_or(steps); }

double CosineAnnealingLR::lr_at(int64_t steps, double initial_lr) const {
  const auto length = static_cast<double>(known_length(options_.t_max.value.value_or(t_max_), "CosineAnnealingLR", "t_max"));
  return options_.eta_min +
         (initial_lr - options_.eta_min) * (1 + std::cos(std::numbers::pi * static_cast<double>(steps) / length)) / 2;
}

void OneCycleLR::Options::fields(Fields& f) {
  f(max_lr, "max_lr", "Highest rate.").greater_than(0);
  f(total_steps, "total_steps", "Steps of the whole cycle; auto: the whole run.").at_least(1);
  f(pct_start, "pct_start", "Part of the cycle in which the rate rises.").range(0, 1);
  f(div_factor, "div_factor", "The first rate is max_lr / div_factor.").greater_than(0);
  f(final_div_factor, "final_div_factor", "The last rate is the first rate / final_div_factor.").greater_than(0);
}

void OneCycleLR::set_total_steps(int64_t steps) { total_ = steps; }

double OneCycleLR::lr_at(int64_t steps, double) const {
  const auto total = static_cast<double>(known_length(options_.total_steps.value.value_or(total_), "OneCycleLR", "total_steps"));
  const double first = options_.max_lr / options_.div_factor;
  const double last = first / options_.final_div_factor;
  const auto between = [](double from, double to, double part) { return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part)); };
  const double peak = options_.pct_start * total - 1;
  const double end = total - 1;
  const double now = std::min(static_cast<double>(steps), end);
  if (now <= peak || peak >= end) return between(first, options_.max_lr, peak <= 0 ? 1.0 : now / peak);
  return between(options_.max_lr, last, (now - peak) / (end - peak));
}

[[maybe_unused]] static const bool registered[] = {
    Registry<LrScheduler>::add<StepLR>("StepLR", "Decays the rate by gamma every step_size steps."),
    Registry<LrScheduler>::add<MultiStepLR>("MultiStepLR", "Decays the rate by gamma at each milestone."),
    Registry<LrScheduler>::add<ExponentialLR>("ExponentialLR", "Multiplies the rate by gamma at each step."),
    Registry<LrScheduler>::add<CosineAnnealingLR>("CosineAnnealingLR", "Lets the rate fall along half a cosine."),
    Registry<LrScheduler>::add<OneCycleLR>("OneCycleLR", "Lets the rate rise and fall once over the run."),
};

}  // namespace fulgur
