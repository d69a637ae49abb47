#include "fulgur/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "schedule_keys.h"
#include "schedule_units.h"

namespace fulgur {
namespace {

// s / length, at most 1.
double part_of(int64_t steps, int64_t length) {
  return length <= 0 ? 1.0 : std::min(static_cast<double>(steps) / static_cast<double>(length), 1.0);
}

double half_cosine(double part) { return (1 + std::cos(std::numbers::pi * part)) / 2; }

}  // namespace

int64_t ScheduleOfLength::steps_of(const Auto<Length>& length, std::string_view option) const {
  return length.is_auto() ? total_steps(option) : steps_of(*length.value, option);
}

void StepLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(step_size, "step_size", "Period of the decays: a number of steps of the schedule, or an interval.")
      .at_least(1)
      .units(kScheduleUnits);
  f(gamma, "gamma", "Factor by which a decay multiplies the rate.").greater_than(0);
}

double StepLR::lr_at(int64_t steps, double initial_lr) const {
  const int64_t size = std::max<int64_t>(steps_of(options_.step_size, "StepLR.step_size"), 1);
  const int64_t decays = steps / size;
  return initial_lr * std::pow(options_.gamma, static_cast<double>(decays));
}

void MultiStepLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(milestones, "milestones", "Points at which the rate decays: numbers of steps of the schedule, or intervals.")
      .required()
      .units(kScheduleUnits);
  f(gamma, "gamma", "Factor by which a decay multiplies the rate.").greater_than(0);
}

double MultiStepLR::lr_at(int64_t steps, double initial_lr) const {
  const auto reached = std::ranges::count_if(
      options_.milestones, [&](const Length& m) { return steps_of(m, "MultiStepLR.milestones") <= steps; });
  return initial_lr * std::pow(options_.gamma, static_cast<double>(reached));
}

void ExponentialLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(gamma, "gamma", "Factor by which each step multiplies the rate.").greater_than(0);
}

double ExponentialLR::lr_at(int64_t steps, double initial_lr) const {
  return initial_lr * std::pow(options_.gamma, static_cast<double>(steps));
}

void ConstantLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(factor, "factor", "Factor of the rate.").at_least(0);
  f(total_iters, "total_iters",
    "How long the factor applies: a number of steps of the schedule, or an interval; auto: the whole run.")
      .units(kScheduleUnits);
}

double ConstantLR::lr_at(int64_t steps, double initial_lr) const {
  return steps < steps_of(options_.total_iters, "ConstantLR.total_iters") ? initial_lr * options_.factor : initial_lr;
}

void LinearLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(start_factor, "start_factor", "Factor of the rate at the first step.").at_least(0);
  f(end_factor, "end_factor", "Factor of the rate at the end.").at_least(0);
  f(total_iters, "total_iters",
    "Length of the change: a number of steps of the schedule, or an interval; auto: the whole run.")
      .units(kScheduleUnits);
}

double LinearLR::lr_at(int64_t steps, double initial_lr) const {
  const double part = part_of(steps, steps_of(options_.total_iters, "LinearLR.total_iters"));
  return initial_lr * (options_.start_factor + (options_.end_factor - options_.start_factor) * part);
}

void PolynomialLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(total_iters, "total_iters",
    "Length of the decay: a number of steps of the schedule, or an interval; auto: the whole run.")
      .units(kScheduleUnits);
  f(power, "power", "Exponent of the remaining fraction.").at_least(0);
}

double PolynomialLR::lr_at(int64_t steps, double initial_lr) const {
  return initial_lr *
         std::pow(1 - part_of(steps, steps_of(options_.total_iters, "PolynomialLR.total_iters")), options_.power);
}

void InverseSquareRootLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(timescale, "timescale", "Number of steps, or interval, after which the rate is divided by the square root of 2.")
      .at_least(1)
      .units(kScheduleUnits);
}

double InverseSquareRootLR::lr_at(int64_t steps, double initial_lr) const {
  const auto scale =
      static_cast<double>(std::max<int64_t>(steps_of(options_.timescale, "InverseSquareRootLR.timescale"), 1));
  return initial_lr * std::sqrt(scale / (static_cast<double>(steps) + scale));
}

void CosineAnnealingLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(t_max, "t_max",
    "Length of the fall to the lowest rate: a number of steps of the schedule, or an interval; auto: the whole run.")
      .at_least(1)
      .units(kScheduleUnits);
  f(eta_min, "eta_min", "Lowest rate.").learning_rate().at_least(0);
}

double CosineAnnealingLR::lr_at(int64_t steps, double initial_lr) const {
  const auto end = static_cast<double>(std::max<int64_t>(steps_of(options_.t_max, "CosineAnnealingLR.t_max"), 1));
  return options_.eta_min + (initial_lr - options_.eta_min) * half_cosine(static_cast<double>(steps) / end);
}

void CosineAnnealingWarmRestarts::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(t_0, "t_0", "Length of the first fall: a number of steps of the schedule, or an interval.")
      .at_least(1)
      .units(kScheduleUnits);
  f(t_mult, "t_mult", "Length of each fall relative to the previous one.").at_least(1);
  f(eta_min, "eta_min", "Lowest rate.").learning_rate().at_least(0);
}

double CosineAnnealingWarmRestarts::lr_at(int64_t steps, double initial_lr) const {
  int64_t length = std::max<int64_t>(steps_of(options_.t_0, "CosineAnnealingWarmRestarts.t_0"), 1);
  if (options_.t_mult == 1) steps %= length;
  for (; steps >= length; length *= options_.t_mult) steps -= length;
  return options_.eta_min +
         (initial_lr - options_.eta_min) * half_cosine(static_cast<double>(steps) / static_cast<double>(length));
}

void WarmupStableDecayLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(warmup, "warmup", "Length of the rise from 0: a number of steps of the schedule, or an interval.")
      .units(kScheduleUnits);
  f(decay, "decay", "Length of the fall at the end: a number of steps of the schedule, or an interval.")
      .units(kScheduleUnits);
  f(total_steps, "total_steps",
    "Length of the whole schedule: a number of steps of the schedule, or an interval; auto: the whole run.")
      .at_least(1)
      .units(kScheduleUnits);
  f(decay_shape, "decay_shape", "How the rate falls.");
  f(final_factor, "final_factor", "Factor of the rate at the end.").at_least(0);
}

void WarmupStableDecayLR::on_attach(const Optimizer&) {
  const int64_t warmup = steps_of(options_.warmup, "WarmupStableDecayLR.warmup"),
                decay = steps_of(options_.decay, "WarmupStableDecayLR.decay");
  const int64_t total = steps_of(options_.total_steps, "WarmupStableDecayLR.total_steps");
  if (warmup + decay > total)
    throw ConfigError(cat("[optim.WarmupStableDecayLR] warmup (", warmup, " steps) and decay (", decay,
                          ") are together longer than total_steps, ", total, ". Shorten one."));
}

double WarmupStableDecayLR::lr_at(int64_t steps, double initial_lr) const {
  const int64_t warmup = steps_of(options_.warmup, "WarmupStableDecayLR.warmup"),
                decay = steps_of(options_.decay, "WarmupStableDecayLR.decay");
  if (steps < warmup) return initial_lr * part_of(steps, warmup);
  const int64_t decayed = steps - (steps_of(options_.total_steps, "WarmupStableDecayLR.total_steps") - decay);
  if (decayed <= 0) return initial_lr;
  const double x = part_of(decayed, decay);
  const double shape = options_.decay_shape == Shape::linear   ? 1 - x
                       : options_.decay_shape == Shape::cosine ? half_cosine(x)
                                                               : 1 - std::sqrt(x);
  return initial_lr * (options_.final_factor + (1 - options_.final_factor) * shape);
}

[[maybe_unused]] static const bool registered_schedules[] = {
    Registry<LrScheduler>::add<StepLR>("StepLR", "Decays the rate by gamma every step_size steps."),
    Registry<LrScheduler>::add<MultiStepLR>("MultiStepLR", "Decays the rate by gamma at each milestone."),
    Registry<LrScheduler>::add<ExponentialLR>("ExponentialLR", "Multiplies the rate by gamma at each step."),
    Registry<LrScheduler>::add<ConstantLR>("ConstantLR", "Multiplies the rate by a factor for the first steps."),
    Registry<LrScheduler>::add<LinearLR>("LinearLR", "Changes the rate linearly from one factor to another."),
    Registry<LrScheduler>::add<PolynomialLR>("PolynomialLR",
                                             "Lowers the rate to 0 by a power of the remaining fraction."),
    Registry<LrScheduler>::add<InverseSquareRootLR>("InverseSquareRootLR",
                                                    "Lowers the rate with the inverse square root of the steps."),
    Registry<LrScheduler>::add<CosineAnnealingLR>("CosineAnnealingLR", "Lowers the rate along half a cosine."),
    Registry<LrScheduler>::add<CosineAnnealingWarmRestarts>("CosineAnnealingWarmRestarts",
                                                            "Lowers the rate along half a cosine, repeatedly."),
    Registry<LrScheduler>::add<WarmupStableDecayLR>("WarmupStableDecayLR",
                                                    "Warm-up, a constant rate, and a fall at the end (WSD)."),
};

}  // namespace fulgur
