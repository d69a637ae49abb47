#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/optimizer.h"

namespace fulgur {

/// Logs the learning rates of all parameter groups: `lr-AdamW`, `lr-AdamW/pg1` or `lr-AdamW/<name of the group>` if
/// there are several groups, `lr-AdamW-1` for a second optimizer of the same class, and the schedule's name instead of
/// `lr-AdamW` if it has one; with `log_momentum` and `log_weight_decay` also `lr-AdamW-momentum` and
/// `lr-AdamW-weight_decay`. A row has the values of its last step, or those at the start of its epoch. Deviations from
/// Lightning: rates can be monitored without a logger, so a run without one is not an error; an optimizer without
/// momentum or weight decay has no such key (Lightning logs 0).
class FULGUR_API LearningRateMonitor final : public Callback {
 public:
  struct FULGUR_API Options {
    std::optional<ScheduleInterval> logging_interval = {};
    bool log_momentum = false;
    bool log_weight_decay = false;
    std::string log_key_prefix = {};
    void fields(Fields& f);
  };
  explicit LearningRateMonitor(Options options);

  /// Throws a ConfigError if two groups have the same key.
  void on_train_start(RunContext& run) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;

  /// Keys of the run, in the order of optimizers and groups; empty before it began.
  std::vector<std::string> keys() const;

 private:
  struct Group {
    std::string key, momentum_key, decay_key;
    const Optimizer* optimizer;
    size_t index;    // among the optimizer's groups
    bool each_step;  // else each epoch
  };
  void log(RunContext& run, bool at_step) const;

  Options options_;
  std::vector<Group> groups_;
};

}  // namespace fulgur
