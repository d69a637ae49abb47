#pragma once

#include "fulgur/callbacks/early_stopping.h"

namespace fulgur::detail {

/// When an EarlyStopping stops, as a function of its scores alone.
class EarlyStoppingRule {
 public:
  /// What it remembers between two scores.
  struct Standing {
    double best_score = 0;   ///< infinite before the first
    int64_t wait_count = 0;  ///< scores without an improvement since the last one
    bool operator==(const Standing&) const = default;
  };
  struct Verdict {
    EarlyStoppingReason stop = EarlyStoppingReason::not_stopped;
    bool improved = false;
  };

  explicit EarlyStoppingRule(const EarlyStopping::Options& options);

  /// The next score. After a verdict that stops it continues as before, since a run may have to continue.
  Verdict judge(double score);
  const Standing& standing() const { return standing_; }
  void restore(const Standing& standing) { standing_ = standing; }

 private:
  std::optional<EarlyStoppingReason> stops_at_once(double score) const;

  EarlyStopping::Options options_;
  Standing standing_;
};

}  // namespace fulgur::detail
