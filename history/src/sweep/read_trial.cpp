#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/run.h"
#include "fulgur/history/sweep_state.h"

namespace fulgur::history {
namespace {

std::optional<double> counted_value(const SweepSpec& spec, const MetricValues& metric) {
  if (metric.count == 0) return std::nullopt;
  if (spec.value == CountedValue::last) return std::isfinite(metric.last) ? std::optional(metric.last) : std::nullopt;
  return spec.mode == MonitorMode::min ? metric.least : metric.most;
}

std::string logged_names(const SweepSpec& spec, const Run& run) {
  std::vector<std::string> names;
  for (const MetricValues& logged : run.metrics)
    if (logged.count > 0) names.push_back(logged.name);
  return cat("the run logged ", names.empty() ? "nothing" : join_some(names, 8), did_you_mean(spec.metric, names));
}

std::string why_no_value(const SweepSpec& spec, const Run& run) {
  const MetricValues* const metric = run.find_metric(spec.metric);
  if (metric && metric->count > 0)
    return cat(spec.value == CountedValue::last ? "the last value" : "every value", " of '", spec.metric,
               "' is NaN or infinite");
  return cat("the metric '", spec.metric, "' was not logged; ", logged_names(spec, run));
}

TrialStatus status_of(const Run& run) {
  switch (run.status) {
    case RunStatus::running:
      return TrialStatus::running;
    case RunStatus::finished:
      return TrialStatus::completed;
    case RunStatus::failed:
      return TrialStatus::failed;
    case RunStatus::interrupted:
      break;
  }
  return TrialStatus::interrupted;
}

}  // namespace

TrialStatus read_trial(const SweepSpec& spec, const std::filesystem::path& sweep_folder, int64_t index,
                       TrialRecord& record) {
  const std::filesystem::path folder = sweep_folder / trial_folder(index);
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return TrialStatus::pending;
  const auto runs = find_runs(folder);
  if (runs.empty()) return TrialStatus::pending;
  // A fit that ended before its first checkpoint begins again in the next folder.
  const Run run = read_run(runs.back());
  record.run = runs.back().lexically_relative(sweep_folder).generic_string();
  record.epochs = run.epochs;
  record.steps = run.steps;
  record.seconds = run.duration_s;
  const MetricValues* const metric = run.find_metric(spec.metric);
  record.value = metric ? counted_value(spec, *metric) : std::nullopt;
  const TrialStatus status = status_of(run);
  record.lacks_metric = !metric && status != TrialStatus::failed;
  record.reason.clear();
  if (status == TrialStatus::failed) record.reason = run.reason;
  if (status != TrialStatus::completed || record.value) return status;
  record.reason = why_no_value(spec, run);
  return TrialStatus::failed;
}

std::string logged_instead(const SweepSpec& spec, const std::filesystem::path& run_folder) {
  return logged_names(spec, read_run(run_folder));
}

TrialRecord collected_trial(const SweepPlan& plan, const std::filesystem::path& sweep_folder, int64_t index,
                            const TrialRecord& before) {
  TrialRecord now = before;
  const TrialStatus found = read_trial(plan.spec, sweep_folder, index, now);
  const bool has_trained = found == TrialStatus::completed || found == TrialStatus::running || now.run != before.run;
  if (before.status == TrialStatus::failed && !has_trained) return before;
  // Halving decides by what it has recorded.
  if (plan.rungs.empty() || found == TrialStatus::completed)
    now.status = found;
  else
    now.lacks_metric = before.lacks_metric;
  if (now.status != TrialStatus::failed)
    now.reason.clear();
  else if (now.reason.empty())
    now.reason = before.reason;
  return now;
}

}  // namespace fulgur::history
