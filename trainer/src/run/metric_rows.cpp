#include "run/metric_rows.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "logging/matrix_media.h"
#include "run/all_loggers.h"

namespace fulgur::detail {
namespace {

// Doubles represent all integers exactly up to this one.
constexpr double kMostStep = 9007199254740992;

// The step that the metric named "step" sets for its row.
int64_t row_step(double metric, int64_t global_step) {
  if (std::abs(metric) <= kMostStep) return static_cast<int64_t>(metric);
  log::warn("logger.bad_step",
            cat("the metric 'step' sets the step of its row, but ", metric,
                " is not a step: the row gets the global step. Log a finite number of at most 2^53"));
  return global_step;
}

}  // namespace

RowPlace row_place(const RunState& run) {
  // After the end of an epoch, the values still belong to that epoch.
  const bool between_epochs =
      run.position.stage == RunningStage::train && !run.counters.in_epoch() && run.counters.epoch > 0;
  return {.step = run.counters.global_step, .epoch = run.counters.epoch - (between_epochs ? 1 : 0)};
}

void send_metrics(RunState& run, Metrics metrics, RowPlace place) {
  if (metrics.empty() || run.position.sanity_checking) return;
  // As in Lightning, a metric named "step" sets the row's step, and one named "epoch" replaces the epoch.
  std::erase_if(metrics, [&](const auto& metric) {
    if (metric.first == "step") place.step = row_step(metric.second, place.step);
    return metric.first == "step";
  });
  if (std::ranges::none_of(metrics, [](const auto& metric) { return metric.first == "epoch"; }))
    metrics.emplace_back("epoch", static_cast<double>(place.epoch));
  for_all_loggers(run.log_targets.size(), [&](size_t i) {
    const Logger& logger = *run.active_loggers[i];  // the target may be its thread
    const auto timer = run.actions.time(typeid(logger), "log_metrics");
    run.log_targets[i]->log_metrics(metrics, place.step);
  });
}

void send_media(const RunState& run, const MediaRecord& record, RowPlace place) {
  for_all_loggers(run.log_targets.size(), [&](size_t i) { run.log_targets[i]->log_media(record, place.step); });
}

void send_matrices(const RunState& run, const std::vector<MetricStore::Matrix>& matrices, RowPlace place) {
  if (run.log_targets.empty() || run.position.sanity_checking) return;
  for (const MetricStore::Matrix& matrix : matrices)
    for (const MediaRecord& record : draw_matrix(matrix.name, matrix.values, matrix.axes))
      send_media(run, record, place);
}

}  // namespace fulgur::detail
