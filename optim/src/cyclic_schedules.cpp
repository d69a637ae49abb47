#include "fulgur/optim/cyclic_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fulgur/core/contracts/registry.h"
#include "schedule_keys.h"
#include "schedule_units.h"

namespace fulgur {
namespace {

constexpr const char* kMomentumDoc = "Also cycle momentum, or the first beta, inversely to the rate.";

}  // namespace

void CyclicLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(base_lr, "base_lr", "Lowest rate.").learning_rate().required().at_least(0);
  f(max_lr, "max_lr", "Highest rate.").learning_rate().required().greater_than(0);
  f(step_size_up, "step_size_up", "Length of the rise: a number of steps of the schedule, or an interval.")
      .at_least(1)
      .units(kScheduleUnits);
  f(step_size_down, "step_size_down", "Number of steps in which the rate falls; null: the same as for the rise.")
      .at_least(1)
      .units(kScheduleUnits);
  f(mode, "mode", "How the amplitude changes: not at all, halved each cycle, or multiplied by gamma each step.");
  f(gamma, "gamma", "Factor by which the amplitude changes at each step in mode exp_range.").greater_than(0);
  f(cycle_momentum, "cycle_momentum", kMomentumDoc);
  f(base_momentum, "base_momentum", "Lowest momentum, at the highest rate.").at_least(0).less_than(1);
  f(max_momentum, "max_momentum", "Highest momentum.").at_least(0).less_than(1);
}

double CyclicLR::height(int64_t steps) const {
  const auto up = static_cast<double>(std::max<int64_t>(steps_of(options_.step_size_up, "CyclicLR.step_size_up"), 1));
  const double down =
      options_.step_size_down
          ? static_cast<double>(std::max<int64_t>(steps_of(*options_.step_size_down, "CyclicLR.step_size_down"), 1))
          : up;
  const double total = up + down, ratio = up / total, now = static_cast<double>(steps);
  const double cycle = std::floor(1 + now / total);
  const double x = 1 + now / total - cycle;
  const double part = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  if (options_.mode == Mode::triangular2) return part / std::exp2(cycle - 1);
  if (options_.mode == Mode::exp_range) return part * std::pow(options_.gamma, now);
  return part;
}

double CyclicLR::lr_at(int64_t steps, double) const {
  return options_.base_lr + (options_.max_lr - options_.base_lr) * height(steps);
}

std::optional<double> CyclicLR::momentum_at(int64_t steps) const {
  if (!options_.cycle_momentum) return std::nullopt;
  return options_.max_momentum - (options_.max_momentum - options_.base_momentum) * height(steps);
}

void OneCycleLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(max_lr, "max_lr", "Highest rate.").learning_rate().greater_than(0);
  f(total_steps, "total_steps",
    "Length of the whole cycle: a number of steps of the schedule, or an interval; auto: the whole run.")
      .at_least(1)
      .units(kScheduleUnits);
  f(pct_start, "pct_start", "Fraction of the cycle in which the rate rises.").range(0, 1);
  f(div_factor, "div_factor", "The first rate is max_lr / div_factor.").greater_than(0);
  f(final_div_factor, "final_div_factor", "The last rate is the first rate / final_div_factor.").greater_than(0);
  f(anneal_strategy, "anneal_strategy", "Whether the rate follows cosines or straight lines.");
  f(three_phase, "three_phase", "Fall to the first rate in as many steps as the rise takes, then to the last rate.");
  f(cycle_momentum, "cycle_momentum", kMomentumDoc);
  f(base_momentum, "base_momentum", "Lowest momentum, at the highest rate.").at_least(0).less_than(1);
  f(max_momentum, "max_momentum", "Highest momentum.").at_least(0).less_than(1);
}

// The position of a step: its phase, and the fraction of it that is done.
struct OneCycleLR::Place {
  enum { rising, falling, ending } phase;
  double part;
};

OneCycleLR::Place OneCycleLR::place(int64_t steps) const {
  constexpr auto kOption = "OneCycleLR.total_steps";
  const auto total = static_cast<double>(
      options_.total_steps.is_auto() ? total_steps(kOption) : steps_of(*options_.total_steps.value, kOption));
  const double end = total - 1;
  const double peak = options_.pct_start * total - 1;
  const double valley = options_.three_phase ? 2 * options_.pct_start * total - 2 : end;
  const double now = std::min(static_cast<double>(steps), end);
  const auto part = [&](double from, double to) {
    return to <= from ? 1.0 : std::min((now - from) / (to - from), 1.0);
  };
  if (now <= peak || peak >= end) return {Place::rising, part(0, peak)};
  if (now <= valley || valley >= end) return {Place::falling, part(peak, valley)};
  return {Place::ending, part(valley, end)};
}

double OneCycleLR::between(double from, double to, double part) const {
  if (options_.anneal_strategy == Anneal::linear) return (to - from) * part + from;
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part));
}

double OneCycleLR::lr_at(int64_t steps, double) const {
  const double first = options_.max_lr / options_.div_factor, last = first / options_.final_div_factor;
  const Place now = place(steps);
  if (now.phase == Place::rising) return between(first, options_.max_lr, now.part);
  if (now.phase == Place::falling) return between(options_.max_lr, options_.three_phase ? first : last, now.part);
  return between(first, last, now.part);
}

std::optional<double> OneCycleLR::momentum_at(int64_t steps) const {
  if (!options_.cycle_momentum) return std::nullopt;
  const Place now = place(steps);
  if (now.phase == Place::rising) return between(options_.max_momentum, options_.base_momentum, now.part);
  if (now.phase == Place::falling) return between(options_.base_momentum, options_.max_momentum, now.part);
  return options_.max_momentum;
}

[[maybe_unused]] static const bool registered_cyclic_schedules[] = {
    Registry<LrScheduler>::add<CyclicLR>("CyclicLR", "Cycles the rate up and down, momentum inversely."),
    Registry<LrScheduler>::add<OneCycleLR>("OneCycleLR",
                                           "Raises and lowers the rate once over the run, momentum inversely."),
};

}  // namespace fulgur
