#include "run/metric_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

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

constexpr int64_t kPictureSize = 256, kLeastCell = 8, kMostCell = 32;

Tensor matrix_picture(const Tensor& numbers) {
  const Tensor sums = numbers.sum(1, /*keepdim=*/true);
  const Tensor shares = (numbers / sums).nan_to_num(0, 0, 0).clamp(0, 1);
  const int64_t longest = std::max<int64_t>({numbers.size(0), numbers.size(1), 1});
  const int64_t cell = std::clamp(kPictureSize / longest, kLeastCell, kMostCell);
  const Tensor gray = (255 * (1 - shares)).round().to(at::kByte);
  return gray.repeat_interleave(cell, 0).repeat_interleave(cell, 1).expand({3, -1, -1}).contiguous();
}

std::string matrix_table(const Tensor& numbers, bool integers) {
  std::string text = "| |", line = "\n|---|";
  for (int64_t column = 0; column < numbers.size(1); ++column) {
    text += cat(" ", column, " |");
    line += "---|";
  }
  text += line;
  const auto value = numbers.accessor<double, 2>();
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    text += cat("\n| ", row, " |");
    for (int64_t column = 0; column < numbers.size(1); ++column) {
      const double number = value[row][column];
      text += cat(" ", integers ? cat(static_cast<int64_t>(number)) : format_double(number), " |");
    }
  }
  return text + "\n";
}

// A picture of the matrix, in which a cell is the darker the larger its share of its row is, and its numbers as a
// Markdown table. Waits for the device.
std::vector<MediaRecord> draw_matrix(const std::string& name, const Tensor& values) {
  const at::NoGradGuard no_grad;
  const Tensor numbers = values.to(at::kCPU, at::kDouble);
  return {ImageRecord{name, matrix_picture(numbers)},
          TextRecord{name, matrix_table(numbers, !c10::isFloatingType(values.scalar_type()))}};
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
  for (const auto& logger : run.active_loggers) {
    const Logger& object = *logger;
    const auto timer = run.actions.time(typeid(object), "log_metrics");
    logger->log_metrics(metrics, place.step);
  }
}

void send_matrices(const RunState& run, const std::vector<MetricStore::Matrix>& matrices, RowPlace place) {
  if (run.active_loggers.empty() || run.position.sanity_checking) return;
  for (const MetricStore::Matrix& matrix : matrices)
    for (const MediaRecord& record : draw_matrix(matrix.name, matrix.values))
      for (const auto& logger : run.active_loggers) logger->log_media(record, place.step);
}

}  // namespace fulgur::detail
