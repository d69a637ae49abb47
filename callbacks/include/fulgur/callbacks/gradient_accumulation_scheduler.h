#pragma once

#include <map>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace fulgur {

/// Changes how many batches make one optimizer step, depending on the position in the run: `{"0": 1, "4": 2}` counts
/// epochs from 0; keys may be intervals, all in the same unit (`500st`, `0.5dur`). Before the first key, each batch
/// makes a step. A window that has begun keeps its length. The factor depends only on the position, so a resumed fit
/// continues with the right factor.
class FULGUR_API GradientAccumulationScheduler final : public Callback {
 public:
  struct FULGUR_API Options {
    std::map<std::string, int64_t> scheduling = {};
    void fields(Fields& f);
  };

  /// Throws a ConfigError for an empty map, a key that is neither an epoch nor an interval, keys in different units, a
  /// duplicate position, and a factor below 1.
  explicit GradientAccumulationScheduler(Options options);

  /// Throws a ConfigError if the Trainer's accumulate_grad_batches is not 1, with manual optimization, and if the run
  /// cannot measure the unit.
  void on_train_start(RunContext& run) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;

  /// Warns of factors whose position has not come, in a run that has a folder.
  void on_train_end(RunContext& run) override;

  /// The factor at a position in the unit of the keys.
  int64_t factor_at(double position) const;

 private:
  struct Change {
    double from;
    int64_t factor;
  };
  double position(RunContext& run) const;
  void apply(RunContext& run);

  Interval::Unit unit_ = Interval::Unit::epochs;
  std::vector<Change> changes_;  // sorted by position
};

}  // namespace fulgur
