#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/contracts/interval_trigger.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// Training batches between two validations inside an epoch of `train_batches`; nullopt: only at the epoch's end.
/// Throws a ConfigError if the interval does not fit.
std::optional<int64_t> validation_interval(const TrainerOptions& options, std::optional<int64_t> train_batches);

/// After which training batches a fit validates.
class ValidationSchedule {
 public:
  /// `context` is the context of the run.
  ValidationSchedule(const RunState& run, RunContext& context);
  /// Call before the first batch of this process.
  void start();
  /// An epoch of `batches` begins, or continues. Throws a ConfigError if the fit validates and the interval does not
  /// fit.
  void begin_epoch(std::optional<int64_t> batches);
  /// Whether validation runs in this epoch.
  bool may_run() const;
  /// Whether a validation is due after this batch. An interval of samples, tokens or time begins again then.
  bool take_due(int64_t batch_idx, bool last_batch);
  /// How many batches from `batch_idx` on come before the next validation inside the epoch; nullopt if it is not known
  /// in advance, or there is none.
  std::optional<int64_t> batches_to_next(int64_t batch_idx) const;
  /// The data, whose length was unknown, ended after `batches`, before the first validation of the epoch.
  bool is_left_out(int64_t batches) const;
  /// Of this epoch, in batches; nullopt: validation is due at its end, or by another measure.
  std::optional<int64_t> interval() const { return interval_; }

 private:
  const RunState& run_;
  RunContext& context_;
  std::optional<int64_t> interval_;
  std::optional<IntervalTrigger> trigger_;
};

}  // namespace fulgur::detail
