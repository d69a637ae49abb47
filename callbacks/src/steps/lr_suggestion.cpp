#include <algorithm>
#include <cmath>

#include "fulgur/callbacks/lr_range_test.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

double range_test_lr(LrTestMode mode, double min_lr, double max_lr, int64_t step, int64_t steps) {
  if (steps <= 1 || step <= 0) return min_lr;
  if (step >= steps - 1) return max_lr;
  const double part = static_cast<double>(step) / static_cast<double>(steps - 1);
  if (mode == LrTestMode::linear) return min_lr + part * (max_lr - min_lr);
  return min_lr * std::pow(max_lr / min_lr, part);
}

LrSuggestion suggest_lr(const LrCurve& curve, size_t skip_begin, size_t skip_end) {
  constexpr size_t kFewest = 3;
  size_t end = 0;
  while (end < curve.points.size() && std::isfinite(curve.points[end].smoothed)) ++end;
  const size_t finite = end;
  end -= std::min(end, skip_end);
  if (end < skip_begin + kFewest)
    return {.lr = {},
            .index = {},
            .reason = cat("the curve has ", counted(static_cast<int64_t>(finite), "finite step"), ", and at least ",
                          static_cast<int64_t>(skip_begin + kFewest + skip_end), " are needed")};
  // Central differences; at the ends the difference to the only neighbour.
  const auto slope = [&](size_t i) {
    const size_t before = i == skip_begin ? i : i - 1, after = i + 1 == end ? i : i + 1;
    return (curve.points[after].smoothed - curve.points[before].smoothed) / static_cast<double>(after - before);
  };
  size_t steepest = skip_begin;
  for (size_t i = skip_begin + 1; i < end; ++i)
    if (slope(i) < slope(steepest)) steepest = i;
  if (slope(steepest) >= 0)
    return {.lr = {}, .index = {}, .reason = "the loss does not fall at any of the tested learning rates"};
  return {.lr = curve.points[steepest].lr, .index = steepest, .reason = {}};
}

}  // namespace fulgur
