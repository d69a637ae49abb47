#include "fulgur/history/sweep_schedule.h"

#include <algorithm>

namespace fulgur::history {
namespace {

/// A point of the space at a rung.
struct Place {
  bool entered = false;  ///< it may train up to the rung
  bool reached = false;  ///< or it never will, since it has failed
  std::optional<double> value;
};

class Ladder {
 public:
  Ladder(const SweepPlan& plan, std::vector<TrialRecord>& trials) : plan_(plan), trials_(trials) {}

  void promote_all() {
    bool all_before = true;  // no more points come to this rung
    for (size_t rung = 0; rung < plan_.rungs.size(); ++rung) {
      std::vector<Place> places;
      for (int64_t point = 0; point < plan_.points(); ++point) places.push_back(place_of(point, rung));
      const bool decided = all_before && std::all_of(places.begin(), places.end(), [](const Place& place) {
                             return !place.entered || place.reached;
                           });
      if (decided || plan_.spec.halving->promotion == Promotion::async) promote_from(rung, places, decided);
      all_before = decided;
    }
  }

 private:
  Place place_of(int64_t point, size_t rung) const {
    Place place{.entered = false, .reached = true, .value = 0.0};
    const auto seeds = static_cast<size_t>(plan_.runs_per_point());
    bool failed = false;
    for (size_t i = static_cast<size_t>(point) * seeds, end = i + seeds; i < end; ++i) {
      const TrialRecord& record = trials_[i];
      place.entered |= record.target >= static_cast<int64_t>(rung);
      const bool there = record.at_rungs.size() > rung;
      const bool complete = record.status == TrialStatus::completed;
      // Early stopping may end a trial before the rung.
      const std::optional<double> value = there ? record.at_rungs[rung] : complete ? record.value : std::nullopt;
      failed |= record.status == TrialStatus::failed;
      place.reached &= there || complete || record.status == TrialStatus::failed;
      if (place.value) place.value = value ? std::optional(*place.value + *value / static_cast<double>(seeds)) : value;
    }
    if (failed) place.value.reset();
    return place;
  }

  void promote_from(size_t rung, const std::vector<Place>& places, bool decided) {
    std::vector<size_t> order;
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i].entered && places[i].reached) order.push_back(i);
    size_t count = order.size() / static_cast<size_t>(plan_.spec.halving->factor);
    if (decided) count = std::max<size_t>(count, 1);
    std::erase_if(order, [&](size_t i) { return !places[i].value; });
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return is_better(plan_.spec.mode, *places[a].value, *places[b].value);
    });
    order.resize(std::min(order.size(), count));
    const auto seeds = static_cast<size_t>(plan_.runs_per_point());
    for (const size_t point : order)
      for (size_t i = point * seeds; i < (point + 1) * seeds; ++i)
        trials_[i].target = std::max(trials_[i].target, static_cast<int64_t>(rung) + 1);
  }

  const SweepPlan& plan_;
  std::vector<TrialRecord>& trials_;
};

bool may_start(const TrialRecord& record) {
  return record.status == TrialStatus::pending || record.status == TrialStatus::interrupted ||
         (record.status == TrialStatus::paused && static_cast<int64_t>(record.at_rungs.size()) <= record.target);
}

}  // namespace

void promote(const SweepPlan& plan, std::vector<TrialRecord>& trials) {
  if (!plan.rungs.empty()) Ladder(plan, trials).promote_all();
}

std::optional<size_t> next_trial(const SweepPlan& plan, const std::vector<TrialRecord>& trials) {
  const auto rank = [&](const TrialRecord& record) {
    const bool interrupted = record.status == TrialStatus::interrupted;
    return interrupted ? static_cast<int64_t>(plan.rungs.size()) + 1 : record.target;
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < trials.size(); ++i)
    if (may_start(trials[i]) && (!best || rank(trials[i]) > rank(trials[*best]))) best = i;
  return best;
}

std::optional<int64_t> rung_of(const SweepPlan& plan, const TrialRecord& record) {
  const auto target = static_cast<size_t>(record.target);
  return target < plan.rungs.size() ? std::optional(plan.rungs[target]) : std::nullopt;
}

std::optional<size_t> trial_without_metric(const std::vector<TrialRecord>& trials) {
  if (std::any_of(trials.begin(), trials.end(), [](const TrialRecord& record) { return record.value.has_value(); }))
    return std::nullopt;
  for (size_t i = 0; i < trials.size(); ++i)
    if (trials[i].status == TrialStatus::failed && trials[i].lacks_metric) return i;
  return std::nullopt;
}

void stop_paused(std::vector<TrialRecord>& trials) {
  const bool decided = std::none_of(trials.begin(), trials.end(), [](const TrialRecord& record) {
    return record.status == TrialStatus::pending || record.status == TrialStatus::running ||
           record.status == TrialStatus::interrupted;
  });
  if (!decided) return;
  for (TrialRecord& record : trials)
    if (record.status == TrialStatus::paused) record.status = TrialStatus::stopped;
}

void continue_sweep(const SweepPlan& plan, std::vector<TrialRecord>& trials, bool retry_failed) {
  for (TrialRecord& record : trials) {
    if (record.status == TrialStatus::running) record.status = TrialStatus::interrupted;
    if (record.status == TrialStatus::stopped && !plan.rungs.empty()) record.status = TrialStatus::paused;
    if (record.status == TrialStatus::failed && retry_failed) {
      record.status = TrialStatus::pending;
      record.reason.clear();
      record.lacks_metric = false;
    }
  }
}

}  // namespace fulgur::history
