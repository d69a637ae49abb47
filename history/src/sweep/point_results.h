#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/history/sweep_state.h"

namespace fulgur::history {

/// A point of the space with all its seeds.
struct PointResult {
  int64_t point = 0;
  size_t first_trial = 0;
  std::string status;  ///< `completed`, or `2 completed, 1 failed`
  bool complete = false;
  std::optional<double> mean;       ///< of the seeds that have a value
  std::optional<double> deviation;  ///< of a sample; if at least two seeds have a value
  int64_t epochs = 0;               ///< the most of one seed
  std::optional<double> seconds;    ///< of all seeds
  std::string reason;               ///< why the first of the failed ones has failed
};

/// The complete points, the best first, then the other points with a value, then the rest.
std::vector<PointResult> point_results(const SweepPlan& plan, const std::vector<TrialRecord>& trials);

/// `0.41273`, or `0.41273 ± 0.012` with several seeds; `-` without a value.
std::string result_text(const SweepPlan& plan, const PointResult& result);

/// The names of the axes, as short as they are unique.
std::vector<std::string> axis_names(const SweepPlan& plan);

}  // namespace fulgur::history
