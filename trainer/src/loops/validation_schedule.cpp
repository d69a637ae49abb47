#include "loops/validation_schedule.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<int64_t> validation_interval(const TrainerOptions& options, std::optional<int64_t> train_batches) {
  if (options.val_check_interval.interval) return std::nullopt;
  const BatchLimit& interval = options.val_check_interval.batches;
  if (interval.count) {
    if (*interval.count < 1)
      throw ConfigError("[trainer.val_check_interval] the interval must be at least 1 batch; got 0.");
    if (train_batches && *interval.count > *train_batches && options.check_val_every_n_epoch)
      throw ConfigError(
          cat("[trainer.val_check_interval] validation every ", *interval.count,
              " batches would never run, since an epoch has ", *train_batches,
              " batches. Lower the interval, or set check_val_every_n_epoch: null to count across epochs."));
    return *interval.count;
  }
  if (interval.fraction == 1.0) return std::nullopt;
  if (interval.fraction <= 0) throw ConfigError("[trainer.val_check_interval] the fraction must be above 0.");
  if (!train_batches)
    throw ConfigError(cat("[trainer.val_check_interval] a fraction (", interval.fraction,
                          ") needs a training loader of known length. Set a number of batches."));
  const auto every = static_cast<int64_t>(static_cast<double>(*train_batches) * interval.fraction);
  return std::max<int64_t>(every, 1);
}

ValidationSchedule::ValidationSchedule(const RunState& run, RunContext& context) : run_(run), context_(context) {
  if (run.options.val_check_interval.interval) trigger_.emplace(*run.options.val_check_interval.interval);
}

void ValidationSchedule::start() {
  if (trigger_) trigger_->start(context_);
}

void ValidationSchedule::begin_epoch(std::optional<int64_t> batches) {
  // A fit that validates nothing has no interval that could be too long.
  interval_ = run_.validation.runs ? validation_interval(run_.options, batches) : std::nullopt;
}

bool ValidationSchedule::may_run() const {
  if (!run_.validation.runs) return false;
  const auto& every_epochs = run_.options.check_val_every_n_epoch;
  return trigger_ || !every_epochs || (run_.counters.epoch + 1) % *every_epochs == 0;
}

bool ValidationSchedule::take_due(int64_t batch_idx, bool last_batch) {
  if (!may_run()) return false;
  if (trigger_) return trigger_->due(context_);
  if (!interval_) return last_batch;
  const int64_t count = run_.options.check_val_every_n_epoch ? batch_idx + 1 : run_.counters.batches_total.completed;
  return count % *interval_ == 0;
}

std::optional<int64_t> ValidationSchedule::batches_to_next(int64_t batch_idx) const {
  if (!may_run() || trigger_ || !interval_) return std::nullopt;
  const int64_t done = run_.options.check_val_every_n_epoch ? batch_idx : run_.counters.batches_total.completed;
  return *interval_ - done % *interval_;
}

bool ValidationSchedule::is_left_out(int64_t batches) const {
  return may_run() && interval_ && !trigger_ && run_.options.check_val_every_n_epoch && batches < *interval_;
}

}  // namespace fulgur::detail
