#include "fulgur/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fulgur/core/registry.h"
#include "fulgur/core/text.h"

namespace fulgur {
namespace {

const std::vector<std::string> kUnits{"ep", "st", "sa", "dur"};

}  // namespace

void StepLR::Options::fields(Fields& f) {
  f(step_size, "step_size", "Between two decays: a number of steps of the schedule, or an interval.").at_least(1).units(kUnits);
  f(gamma, "gamma", "Factor of a decay.").greater_than(0);
}

double StepLR::lr_at(int64_t steps, double initial_lr) const {
  const int64_t size = std::max<int64_t>(steps_of(options_.step_size, "StepLR.step_size"), 1);
  return initial_lr * std::pow(options_.gamma, static_cast<double>(steps / size));
}

void MultiStepLR::Options::fields(Fields& f) {
  f(milestones, "milestones", "Where the rate decays: numbers of steps of the schedule, or intervals.").required().units(kUnits);
  f(gamma, "gamma", "Factor of a decay.").greater_than(0);
}

double MultiStepLR::lr_at(int64_t steps, double initial_lr) const {
  const auto reached = std::count_if(options_.milestones.begin(), options_.milestones.end(), [&](const Length& m) { return steps_of(m, "MultiStepLR.milestones") <= steps; });
  return initial_lr * std::pow(options_.gamma, static_cast<double>(reached));
}

void ExponentialLR::Options::fields(Fields& f) { f(gamma, "gamma", "Factor of each step.").greater_than(0); }

double ExponentialLR::lr_at(int64_t steps, double initial_lr) const {
  return initial_lr * std::pow(options_.gamma, static_cast<double>(steps));
}

void CosineAnnealingLR::Options::fields(Fields& f) {
  f(t_max, "t_max", "Until the lowest rate: a number of steps of the schedule, or an interval; auto: the whole run.").at_least(1).units(kUnits);
  f(eta_min, "eta_min", "Lowest rate.").at_least(0);
}

double CosineAnnealingLR::lr_at(int64_t steps, double initial_lr) const {
  constexpr auto kOption = "CosineAnnealingLR.t_max";
  const auto length = static_cast<double>(options_.t_max.is_auto() ? total_steps(kOption) : steps_of(*options_.t_max.value, kOption));
  return options_.eta_min +
         (initial_lr - options_.eta_min) * (1 + std::cos(std::numbers::pi * static_cast<double>(steps) / length)) / 2;
}

void OneCycleLR::Options::fields(Fields& f) {
  f(max_lr, "max_lr", "Highest rate.").greater_than(0);
  f(total_steps, "total_steps", "The whole cycle: a number of steps of the schedule, or an interval; auto: the whole run.").at_least(1).units(kUnits);
  f(pct_start, "pct_start", "Part of the cycle in which the rate rises.").range(0, 1);
  f(div_factor, "div_factor", "The first rate is max_lr / div_factor.").greater_than(0);
  f(final_div_factor, "final_div_factor", "The last rate is the first rate / final_div_factor.").greater_than(0);
}

double OneCycleLR::lr_at(int64_t steps, double) const {
  constexpr auto kOption = "OneCycleLR.total_steps";
  const auto total = static_cast<double>(options_.total_steps.is_auto() ? total_steps(kOption) : steps_of(*options_.total_steps.value, kOption));
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
