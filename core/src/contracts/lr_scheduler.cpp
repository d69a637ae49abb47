#include "fulgur/core/contracts/lr_scheduler.h"

#include <algorithm>
#include <cmath>

#include "contracts/rates.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void LrScheduler::attach(Optimizer& optimizer) {
  if (!optimizer.attached()) throw ConfigError("[core.LrScheduler.attach] attach parameters to the optimizer first.");
  optimizer_ = &optimizer;
  decided_.clear();
  on_attach(optimizer);
  apply();
}

Optimizer& LrScheduler::optimizer() const {
  if (!optimizer_) throw Error("[core.LrScheduler] the scheduler has no optimizer yet; call attach().");
  return *optimizer_;
}

std::vector<double> LrScheduler::rates() const {
  const int64_t steps = position();
  std::vector<double> rates;
  for (const ParamGroup& group : optimizer().groups()) rates.push_back(lr_at(steps, group.initial_lr));
  return rates;
}

void LrScheduler::apply() {
  std::vector<ParamGroup>& groups = optimizer().groups();
  const auto refuse = [&](std::string_view what, double value, const std::string& where) {
    throw ConfigError(cat("[core.LrScheduler] ", what, " must be finite and at least 0; ",
                          detail::class_name(typeid(*this)), " gives ", value, where, " after ", steps_,
                          " of its steps."));
  };
  const std::vector<double> now = rates();
  for (size_t g = 0; g < groups.size(); ++g)
    if (!detail::is_rate(now[g]))
      refuse("a learning rate", now[g],
             cat(" for ", detail::group_text(g, groups[g].name), " of ", optimizer().name(), ", whose first rate is ",
                 groups[g].initial_lr, ","));
  const auto momentum = momentum_at(position());
  if (momentum && !detail::is_rate(*momentum)) refuse("a momentum", *momentum, cat(" for ", optimizer().name()));
  for (size_t g = 0; g < groups.size(); ++g) groups[g].lr = now[g];
  if (momentum) optimizer().set_momentum(*momentum);
}

double LrScheduler::exact_position() const {
  const int64_t steps = steps_ - resumed_steps_;
  return resumed_position_ + (steps > 0 ? first_pace_ + static_cast<double>(steps - 1) * pace_ : 0);
}

// Rounding errors of the pace must not delay a whole step.
int64_t LrScheduler::position() const { return static_cast<int64_t>(std::floor(exact_position() + 1e-6)); }

bool LrScheduler::any(bool LrScheduler::*flag) const {
  const auto all = parts();
  return this->*flag || std::ranges::any_of(all, [&](const auto& part) { return part->any(flag); });
}

double LrScheduler::pace_of(const RunLength& plan, const RunLength& before) const {
  if (interval_ != ScheduleInterval::step) return 1;
  const auto samples_over = [&](const RunLength& other) {
    return other.samples_per_step && part_.samples_per_step ? *part_.samples_per_step / *other.samples_per_step : 1;
  };
  const bool by_epochs = any(&LrScheduler::counts_epochs_) || (any(&LrScheduler::covers_run_) && part_.epochs);
  if (!by_epochs || !plan.steps_per_epoch || !part_.steps_per_epoch || *part_.steps_per_epoch == 0)
    return samples_over(plan);
  const double epoch = *plan.steps_per_epoch, epoch_now = *part_.steps_per_epoch, samples = samples_over(plan);
  if (std::abs(epoch_now * samples - epoch) < 1e-6 * epoch) return samples;
  // By epochs, since the last step of an epoch may have fewer samples than the others.
  if (!part_.epochs) return epoch / epoch_now;
  const double position = resumed_position_ * static_cast<double>(frequency_);
  const double epochs_done = std::floor(position / epoch + 1e-6), in_epoch = position - epochs_done * epoch;
  const bool same_epochs = std::abs(epoch_now * samples - epoch) < std::max(samples, 1.0);
  // An epoch ends at its new length, which includes the samples already done in the current one.
  double left_of_epoch = std::clamp(epoch_now - in_epoch / saved_pace_ / samples_over(before), 0.0, epoch_now);
  // Its short last step may be one of the old steps or of the new ones.
  if (same_epochs) left_of_epoch = std::min(left_of_epoch, (epoch - in_epoch) / samples);
  const auto epochs = static_cast<double>(*part_.epochs);
  const double left = (epochs - epochs_done - 1) * epoch_now + std::ceil(left_of_epoch - 1e-6);
  return left > 0 ? (epochs * epoch - position) / left : epoch / epoch_now;
}

void LrScheduler::keep_plan(const RunLength& plan, const RunLength& before) {
  const bool same_part = before == part_;
  pace_ = same_part ? saved_pace_ : pace_of(plan, before);
  run_length_ = plan;
  run_length_.epochs = part_.epochs;
  run_length_.max_steps = part_.max_steps;
  if (interval_ == ScheduleInterval::step) {
    // Counted in steps of the run, like its limits.
    const auto own = static_cast<double>(frequency_);
    const double done = static_cast<double>(steps_) * own, position = resumed_position_ * own;
    const bool same_limits = plan.epochs == part_.epochs && plan.max_steps == part_.max_steps;
    std::optional<double> end;
    if (part_.epochs && plan.steps_per_epoch) end = static_cast<double>(*part_.epochs) * *plan.steps_per_epoch;
    if (part_.max_steps) {
      const double left = static_cast<double>(*part_.max_steps) - done;
      const double limit = same_limits && plan.steps ? static_cast<double>(*plan.steps) : position + left * pace_;
      const bool limits = !end || position + left * pace_ < *end;
      if (limits) {
        end = end ? std::min(*end, limit) : limit;
        if (!same_part && any(&LrScheduler::covers_run_) && left > 0) pace_ = std::max(*end - position, 0.0) / left;
      }
    }
    run_length_.steps = end ? std::optional<int64_t>(std::llround(*end)) : std::nullopt;
  }
  decided_.clear();
  on_attach(optimizer());
}

void LrScheduler::step(std::optional<double> metric) {
  observe(position(), metric);
  ++steps_;
  apply();
}

void LrScheduler::set_run_length(const RunLength& length, ScheduleInterval interval, int64_t frequency) {
  part_ = run_length_ = length;
  interval_ = interval;
  frequency_ = frequency;
}

namespace {

[[noreturn]] void unknown_length(std::string_view option, std::string_view value) {
  throw ConfigError(cat("[optim.", option, "] ", value,
                        " needs the length of the run, which is not known here. Give a count, or set max_steps, or "
                        "max_epochs with a loader of known length."));
}

}  // namespace

std::optional<int64_t> LrScheduler::known_steps() const {
  if (is_part_) return part_steps_;
  // A run of no step has no rate; any length will do.
  if (run_length_.max_steps == 0 || run_length_.epochs == 0) return 1;
  const auto total = interval_ == ScheduleInterval::step ? run_length_.steps : run_length_.epochs;
  if (!total || *total == 0) return std::nullopt;
  return std::max<int64_t>(*total / frequency_, 1);
}

int64_t LrScheduler::total_steps(std::string_view option) const {
  depends_on_run_ = covers_run_ = true;
  const auto steps = known_steps();
  if (!steps) unknown_length(option, "auto");
  const int64_t total = std::max<int64_t>(*steps, 1);
  if (const auto key = option.substr(option.find('.') + 1); !decided_.contains(key)) decided_.emplace(key, total);
  return total;
}

void LrScheduler::adopt(LrScheduler& part, const Optimizer& optimizer, std::optional<int64_t> steps) const {
  part.set_run_length(run_length_, interval_, frequency_);
  part.is_part_ = true;
  part.part_steps_ = steps;
  part.decided_.clear();
  part.on_attach(optimizer);
  // An unknown length is reported now, not when the part begins.
  part.lr_at(0, 1.0);
}

int64_t LrScheduler::steps_of(const Length& length, std::string_view option) const {
  if (!length.interval) return length.count;
  const Interval& interval = *length.interval;
  depends_on_run_ |= interval.unit != Interval::Unit::steps;
  const std::string text = interval.text();
  const bool by_step = interval_ == ScheduleInterval::step;
  // First in optimizer steps or epochs of the run, as the schedule counts, then in its own steps.
  std::optional<double> count;
  const auto steps_to_own = [&](std::optional<double> steps) -> std::optional<double> {
    if (by_step || !steps) return steps;
    return run_length_.steps_per_epoch ? std::optional(*steps / *run_length_.steps_per_epoch) : std::nullopt;
  };
  switch (interval.unit) {
    case Interval::Unit::epochs:
      counts_epochs_ |= by_step;
      if (!by_step)
        count = interval.value;
      else if (run_length_.steps_per_epoch)
        count = interval.value * *run_length_.steps_per_epoch;
      break;
    case Interval::Unit::steps:
      count = steps_to_own(interval.value);
      break;
    case Interval::Unit::samples:
      count = steps_to_own(run_length_.samples_per_step ? std::optional(interval.value / *run_length_.samples_per_step)
                                                        : std::nullopt);
      break;
    case Interval::Unit::run:
      covers_run_ = true;
      if (const auto total = by_step ? run_length_.steps : run_length_.epochs)
        count = interval.value * static_cast<double>(*total);
      break;
    case Interval::Unit::tokens:
    case Interval::Unit::seconds:
      throw ConfigError(
          cat("[optim.", option, "] a schedule is a function of steps; got ", text, ". Use ep, st, sa or dur."));
  }
  if (!count) unknown_length(option, text);
  return static_cast<int64_t>(std::llround(*count / static_cast<double>(frequency_)));
}

void LrScheduler::scale_rates(double factor) {
  for (const auto& part : parts()) part->scale_rates(factor);
}

void LrScheduler::observe(int64_t, std::optional<double>) {}
void LrScheduler::on_attach(const Optimizer&) {}
std::optional<double> LrScheduler::momentum_at(int64_t) const { return std::nullopt; }

namespace {

StateTree to_state(const RunLength& length) {
  const auto number = [](const auto& value) { return value ? StateTree(*value) : StateTree(nullptr); };
  return StateTree::map({{"epochs", number(length.epochs)},
                         {"steps", number(length.steps)},
                         {"steps_per_epoch", number(length.steps_per_epoch)},
                         {"samples_per_step", number(length.samples_per_step)},
                         {"max_steps", number(length.max_steps)}});
}

RunLength to_run_length(const StateTree& state) {
  const auto count = [&](const char* key) {
    return state.at(key).is_null() ? std::nullopt : std::optional(state.at(key).as_int());
  };
  const auto number = [&](const char* key) {
    return state.at(key).is_null() ? std::nullopt : std::optional(state.at(key).as_double());
  };
  return {.epochs = count("epochs"),
          .steps = count("steps"),
          .steps_per_epoch = number("steps_per_epoch"),
          .samples_per_step = number("samples_per_step"),
          .max_steps = count("max_steps")};
}

}  // namespace

StateTree LrScheduler::state() const {
  StateTree state = StateTree::map({{"steps", steps_},
                                    {"position", exact_position()},
                                    {"pace", pace_},
                                    {"length", to_state(run_length_)},
                                    {"part", to_state(part_)}});
  if (optimizer_) {
    const std::vector<double> now = rates();
    state["rates"] = StateTree::List(now.begin(), now.end());
  }
  return state;
}

void LrScheduler::load_state(const StateTree& state) {
  steps_ = resumed_steps_ = state.at("steps").as_int();
  resumed_position_ = state.at("position").as_double();
  if (!optimizer_) return;
  const RunLength plan = to_run_length(state.at("length"));
  saved_pace_ = state.at("pace").as_double();
  const bool other_batches =
      plan.samples_per_step && part_.samples_per_step && *plan.samples_per_step != *part_.samples_per_step;
  const RunLength before = to_run_length(state.at("part"));
  const bool changed = other_batches || pace_of(plan, before) != 1;
  if (changed && any(&LrScheduler::depends_on_run_)) keep_plan(plan, before);
  first_pace_ = pace_;
  apply();
}

}  // namespace fulgur
