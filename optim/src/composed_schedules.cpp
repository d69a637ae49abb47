#include "fulgur/optim/composed_schedules.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "schedule_keys.h"
#include "schedule_units.h"

namespace fulgur {
namespace {

using Parts = std::vector<std::shared_ptr<LrScheduler>>;

Parts create(const std::vector<Spec<LrScheduler>>& specs) {
  Parts parts;
  for (const auto& spec : specs) parts.push_back(spec ? spec.create() : nullptr);
  return parts;
}

void check_parts(const Parts& parts, std::string_view name) {
  if (parts.empty() || std::ranges::count(parts, nullptr) > 0)
    throw ConfigError(cat("[optim.", name, "] schedulers must name at least one schedule, and none may be null."));
}

bool any_wants_metric(const Parts& parts) {
  return std::ranges::any_of(parts, [](const auto& part) { return part->wants_metric(); });
}

StateTree state_of(const Parts& parts) {
  StateTree::List list;
  for (const auto& part : parts) list.push_back(part->state());
  return list;
}

// All or nothing: if one part refuses, the previous ones are restored.
void load_parts(const Parts& parts, const StateTree& whole, std::string_view name) {
  whole.at("steps").as_int();
  const auto& saved = whole.at("parts").as_list();
  if (saved.size() != parts.size())
    throw CheckpointError(cat("[optim.", name, ".load_state] the checkpoint has ", saved.size(),
                              " schedules, but the run has ", parts.size(), "."));
  const StateTree before = state_of(parts);
  try {
    for (size_t i = 0; i < parts.size(); ++i) parts[i]->load_state(saved[i]);
  } catch (const CheckpointError&) {
    for (size_t i = 0; i < parts.size(); ++i) parts[i]->load_state(before.as_list()[i]);
    throw;
  }
}

}  // namespace

bool ComposedSchedule::wants_metric() const { return any_wants_metric(parts()); }

std::optional<MonitorMode> ComposedSchedule::metric_mode() const {
  std::optional<MonitorMode> found;
  for (const std::shared_ptr<LrScheduler>& part : parts()) {
    const std::optional<MonitorMode> mode = part->metric_mode();
    if (mode && found && *mode != *found) return std::nullopt;
    if (mode) found = mode;
  }
  return found;
}

StateTree ComposedSchedule::state() const {
  StateTree state = LrScheduler::state();
  state["parts"] = state_of(parts());
  return state;
}

void ComposedSchedule::load_state(const StateTree& state) {
  load_parts(parts(), state, name_);
  LrScheduler::load_state(state);
}

void WarmupLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(length, "length", "Length of the warm-up: a number of steps of the schedule, or an interval.")
      .required()
      .units(kScheduleUnits);
  f(start_factor, "start_factor", "Factor of the rate at the first step.").at_least(0);
  f(kind, "kind", "How the rate rises.");
  f(after, "after", "The schedule after the warm-up; null: a constant rate.");
}

WarmupLR::WarmupLR(Options options) : WarmupLR(options, options.after ? options.after.create() : nullptr) {}

WarmupLR::WarmupLR(Options options, std::shared_ptr<LrScheduler> after)
    : ComposedSchedule("WarmupLR"), options_(std::move(options)), after_(std::move(after)) {
  if (options_.kind == Kind::exponential && options_.start_factor == 0)
    throw ConfigError(
        "[optim.WarmupLR] an exponential warm-up cannot start at 0. Set start_factor above 0, or kind: linear.");
}

int64_t WarmupLR::length() const { return steps_of(options_.length, "WarmupLR.length"); }

void WarmupLR::on_attach(const Optimizer& optimizer) {
  if (!after_) return;
  const auto whole = known_steps();
  adopt(*after_, optimizer, whole ? std::optional(std::max<int64_t>(*whole - length(), 1)) : std::nullopt);
}

double WarmupLR::lr_at(int64_t steps, double initial_lr) const {
  const int64_t warm = length();
  const double full = after_ ? after_->lr_at(std::max<int64_t>(steps - warm, 0), initial_lr) : initial_lr;
  if (steps >= warm) return full;
  const double part = static_cast<double>(steps) / static_cast<double>(warm), start = options_.start_factor;
  if (options_.kind == Kind::constant) return full * start;
  if (options_.kind == Kind::exponential) return full * std::pow(start, 1 - part);
  return full * (start + (1 - start) * part);
}

std::optional<double> WarmupLR::momentum_at(int64_t steps) const {
  return after_ ? after_->momentum_at(std::max<int64_t>(steps - length(), 0)) : std::nullopt;
}

void WarmupLR::observe(int64_t steps, std::optional<double> metric) {
  if (after_ && steps >= length()) after_->observe(steps - length(), metric);
}

std::vector<std::shared_ptr<LrScheduler>> WarmupLR::parts() const { return after_ ? Parts{after_} : Parts{}; }

void SequentialLR::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(schedulers, "schedulers", "The schedules, in their order.").required().min_items(1);
  f(milestones, "milestones", "Starts of the second and later schedules: numbers of steps, or intervals.")
      .units(kScheduleUnits);
}

struct SequentialLR::Place {
  size_t part;
  int64_t begin;
};

SequentialLR::SequentialLR(Options options) : SequentialLR(create(options.schedulers), std::move(options.milestones)) {}

SequentialLR::SequentialLR(Parts parts, std::vector<Length> milestones)
    : ComposedSchedule("SequentialLR"), parts_(std::move(parts)), milestones_(std::move(milestones)) {
  check_parts(parts_, "SequentialLR");
  if (milestones_.size() + 1 != parts_.size())
    throw ConfigError(cat("[optim.SequentialLR] ", parts_.size(), " schedules need ", parts_.size() - 1,
                          " milestones; got ", milestones_.size(), "."));
}

void SequentialLR::on_attach(const Optimizer& optimizer) {
  int64_t begin = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::optional<int64_t> end = known_steps();
    if (i < milestones_.size()) {
      end = steps_of(milestones_[i], "SequentialLR.milestones");
      if (*end <= begin)
        throw ConfigError(
            cat("[optim.SequentialLR] each milestone must come after the previous one, the first after 0; milestone ",
                i, " is at step ", *end, "."));
    }
    adopt(*parts_[i], optimizer, end ? std::optional(std::max<int64_t>(*end - begin, 1)) : std::nullopt);
    if (end) begin = *end;
  }
}

int64_t SequentialLR::last_begin() const {
  return milestones_.empty() ? 0 : steps_of(milestones_.back(), "SequentialLR.milestones");
}

SequentialLR::Place SequentialLR::place(int64_t steps) const {
  Place now{0, 0};
  for (size_t i = 0; i < milestones_.size(); ++i)
    if (const int64_t begin = steps_of(milestones_[i], "SequentialLR.milestones"); begin <= steps) now = {i + 1, begin};
  return now;
}

double SequentialLR::lr_at(int64_t steps, double initial_lr) const {
  const Place now = place(steps);
  return parts_[now.part]->lr_at(steps - now.begin, initial_lr);
}

std::optional<double> SequentialLR::momentum_at(int64_t steps) const {
  const Place now = place(steps);
  return parts_[now.part]->momentum_at(steps - now.begin);
}

void SequentialLR::observe(int64_t steps, std::optional<double> metric) {
  const Place now = place(steps);
  parts_[now.part]->observe(steps - now.begin, metric);
}

void ChainedScheduler::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_schedule_key;
  f(schedulers, "schedulers", "The schedules; each acts on the rate of the previous one.").required().min_items(1);
}

ChainedScheduler::ChainedScheduler(Options options) : ChainedScheduler(create(options.schedulers)) {}

ChainedScheduler::ChainedScheduler(Parts parts) : ComposedSchedule("ChainedScheduler"), parts_(std::move(parts)) {
  check_parts(parts_, "ChainedScheduler");
}

void ChainedScheduler::on_attach(const Optimizer& optimizer) {
  for (const auto& part : parts_) adopt(*part, optimizer, known_steps());
}

double ChainedScheduler::lr_at(int64_t steps, double initial_lr) const {
  double lr = initial_lr;
  for (const auto& part : parts_) lr = part->lr_at(steps, lr);
  return lr;
}

std::optional<double> ChainedScheduler::momentum_at(int64_t steps) const {
  std::optional<double> momentum;
  for (const auto& part : parts_)
    if (const auto moved = part->momentum_at(steps)) momentum = moved;
  return momentum;
}

void ChainedScheduler::observe(int64_t steps, std::optional<double> metric) {
  for (const auto& part : parts_) part->observe(steps, metric);
}

[[maybe_unused]] static const bool registered_composed_schedules[] = {
    Registry<LrScheduler>::add<WarmupLR>("WarmupLR", "Warms up the rate before any schedule."),
    Registry<LrScheduler>::add<SequentialLR>("SequentialLR", "One schedule after another."),
    Registry<LrScheduler>::add<ChainedScheduler>("ChainedScheduler", "Several schedules at once."),
};

}  // namespace fulgur
