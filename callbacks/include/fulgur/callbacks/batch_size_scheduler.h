#pragma once

#include <array>
#include <optional>
#include <vector>

#include "fulgur/core/contracts/batch_size_plan.h"
#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/interval.h"

namespace fulgur {

/// What a BatchSizeScheduler changes: the batches of the loader, or how many of them make a step.
enum class BatchSizeBy { batch, accumulation };
constexpr auto enum_names(BatchSizeBy) {
  return std::to_array<EnumName<BatchSizeBy>>(
      {{BatchSizeBy::batch, "batch"}, {BatchSizeBy::accumulation, "accumulation"}});
}

/// A position of a fit from which another batch size applies.
struct FULGUR_API BatchSizeChange {
  Interval at = {};
  int64_t batch_size = 0;
  void fields(Fields& f);
};

/// Changes how many samples of one process make a batch, or an optimizer step, during a fit. The Trainer carries the
/// plan out: with `by: batch`, an epoch has the size that is due when it begins; with `by: accumulation`, a window has
/// the length that is due when it begins. The size depends on the position only, so this callback has no state.
class FULGUR_API BatchSizeScheduler final : public Callback, public PlansBatchSizes {
 public:
  struct FULGUR_API Options {
    std::vector<BatchSizeChange> schedule = {};
    std::optional<Interval> every = {};
    std::optional<int64_t> factor = {};  ///< 2 if `every` is set
    std::optional<int64_t> max = {};     ///< required with `every`
    BatchSizeBy by = BatchSizeBy::batch;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for options out of range, unless exactly one of `schedule` and `every` is set, and for
  /// positions in different units or at the same place.
  explicit BatchSizeScheduler(Options options);

  /// Warns of sizes in `schedule` whose position has not come, in a run that has a folder.
  void on_train_end(RunContext& run) override;
  /// Throws a ConfigError if `max` is not above the loader's batch size, and, by accumulation, for a size that is not a
  /// multiple of it.
  BatchSizePlan batch_size_plan(int64_t own) const override;

 private:
  std::vector<BatchSizePlan::Change> growth_from(int64_t own) const;

  Options options_;
};

}  // namespace fulgur
