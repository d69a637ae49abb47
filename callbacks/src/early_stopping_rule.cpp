#include "early_stopping_rule.h"

#include <cmath>

namespace fulgur::detail {

EarlyStoppingRule::EarlyStoppingRule(const EarlyStopping::Options& options)
    : options_(options), standing_{.best_score = worst_value(options.mode)} {}

std::optional<EarlyStoppingReason> EarlyStoppingRule::stops_at_once(double score) const {
  if (options_.check_finite && !std::isfinite(score)) return EarlyStoppingReason::non_finite_metric;
  if (options_.stopping_threshold && is_better(options_.mode, score, *options_.stopping_threshold))
    return EarlyStoppingReason::stopping_threshold;
  if (options_.divergence_threshold && is_better(options_.mode, *options_.divergence_threshold, score))
    return EarlyStoppingReason::divergence_threshold;
  return std::nullopt;
}

EarlyStoppingRule::Verdict EarlyStoppingRule::judge(double score) {
  if (const auto reason = stops_at_once(score)) return {.stop = *reason};
  const double needed = options_.mode == MonitorMode::max ? score - options_.min_delta : score + options_.min_delta;
  if (is_better(options_.mode, needed, standing_.best_score)) {
    standing_ = {.best_score = score};
    return {.improved = true};
  }
  if (++standing_.wait_count < options_.patience) return {};
  return {.stop = EarlyStoppingReason::patience_exhausted};
}

}  // namespace fulgur::detail
