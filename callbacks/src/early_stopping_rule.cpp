#include "early_stopping_rule.h"

#include <cmath>

namespace fulgur::detail {

EarlyStoppingRule::EarlyStoppingRule(const EarlyStopping::Options& options)
    : options_(options), comparison_(options.mode), standing_{.best_score = comparison_.worst()} {}

std::optional<EarlyStoppingReason> EarlyStoppingRule::stops_at_once(double score) const {
  if (options_.check_finite && !std::isfinite(score)) return EarlyStoppingReason::non_finite_metric;
  if (options_.stopping_threshold && comparison_.better(score, *options_.stopping_threshold))
    return EarlyStoppingReason::stopping_threshold;
  if (options_.divergence_threshold && comparison_.better(*options_.divergence_threshold, score))
    return EarlyStoppingReason::divergence_threshold;
  return std::nullopt;
}

EarlyStoppingRule::Verdict EarlyStoppingRule::judge(double score) {
  if (const auto reason = stops_at_once(score)) return {.stop = *reason};
  if (comparison_.better(comparison_.improved(score, -options_.min_delta), standing_.best_score)) {
    standing_ = {.best_score = score};
    return {.improved = true};
  }
  if (++standing_.wait_count < options_.patience) return {};
  return {.stop = EarlyStoppingReason::patience_exhausted};
}

}  // namespace fulgur::detail
