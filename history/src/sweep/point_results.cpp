#include "sweep/point_results.h"

#include <algorithm>
#include <cmath>

#include "drawing/number_text.h"
#include "fulgur/core/text/text.h"
#include "reading/config_keys.h"

namespace fulgur::history {
namespace {

std::string statuses_text(const std::vector<TrialStatus>& statuses) {
  std::vector<std::string> parts;
  for (const auto& [status, name] : enum_names(TrialStatus())) {
    const auto count = std::count(statuses.begin(), statuses.end(), status);
    if (count == static_cast<std::ptrdiff_t>(statuses.size())) return std::string(name);
    if (count > 0) parts.push_back(cat(count, " ", name));
  }
  return join(parts);
}

void summarize(const std::vector<double>& values, PointResult& result) {
  if (values.empty()) return;
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  result.mean = mean;
  if (values.size() > 1) result.deviation = std::sqrt(squares / (count - 1));
}

}  // namespace

std::vector<PointResult> point_results(const SweepPlan& plan, const std::vector<TrialRecord>& trials) {
  std::vector<PointResult> results;
  const auto seeds = static_cast<size_t>(plan.runs_per_point());
  for (size_t first = 0; first < trials.size(); first += seeds) {
    PointResult result;
    result.point = plan.trials[first].point;
    result.first_trial = first;
    std::vector<TrialStatus> statuses;
    std::vector<double> values;
    for (size_t i = first; i < first + seeds; ++i) {
      const TrialRecord& record = trials[i];
      statuses.push_back(record.status);
      if (record.value && record.status != TrialStatus::failed) values.push_back(*record.value);
      result.epochs = std::max(result.epochs, record.epochs);
      if (record.seconds) result.seconds = result.seconds.value_or(0) + *record.seconds;
      if (record.status == TrialStatus::failed && result.reason.empty()) result.reason = record.reason;
    }
    result.status = statuses_text(statuses);
    summarize(values, result);
    result.complete = values.size() == seeds && std::all_of(statuses.begin(), statuses.end(), [](TrialStatus status) {
                        return status == TrialStatus::completed;
                      });
    results.push_back(std::move(result));
  }
  std::stable_sort(results.begin(), results.end(), [&](const PointResult& a, const PointResult& b) {
    if (a.complete != b.complete) return a.complete;
    if (a.mean.has_value() != b.mean.has_value()) return a.mean.has_value();
    return a.mean && is_better(plan.spec.mode, *a.mean, *b.mean);
  });
  return results;
}

std::string result_text(const SweepPlan& plan, const PointResult& result) {
  const std::string mean = value_text(result.mean);
  return plan.runs_per_point() > 1 && result.deviation ? cat(mean, " ± ", value_text(*result.deviation)) : mean;
}

std::vector<std::string> axis_names(const SweepPlan& plan) {
  std::vector<std::string> keys;
  for (const SweepAxis& axis : plan.spec.space.axes) keys.push_back(axis.key);
  return short_names(keys);
}

}  // namespace fulgur::history
