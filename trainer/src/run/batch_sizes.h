#pragma once

#include "run/run_state.h"

/// The batch sizes that a callback plans (`RunState::batch_sizes`); nothing here does anything without a plan.
namespace fulgur::detail {

/// The plan of the run's callbacks for a loader with this batch size; nullopt if none of them has one. Throws a
/// ConfigError if two have one, or if something else decides the same.
std::optional<BatchSizePlan> find_batch_size_plan(const RunState& run, int64_t own);

/// Sets the batch size of the epoch at the run's position. Call it before the epoch starts in the loader.
void set_batch_size_of_epoch(RunState& run);

/// The same for an epoch that is trained from here on; says so if its size is another than that of the epoch before.
void begin_batch_size_of_epoch(RunState& run);

/// The same for a run that resumes: an epoch under way keeps the size that it has in `saved`, the state of the loader,
/// unless the loader's own batch size has changed since, as for another number of ranks.
void set_batch_size_of_resumed_epoch(RunState& run, const StateTree& saved);

/// Sets the length of the accumulation window that begins at the run's position.
void plan_window(RunState& run, std::optional<int64_t> batches_in_epoch);

/// The same for a window that is trained next; says so if its length is another than that of the window before.
void begin_window(RunState& run, std::optional<int64_t> batches_in_epoch);

/// The first epoch of the fit, of which lengths are derived.
struct FirstEpoch {
  std::optional<int64_t> batches;
  int64_t batch_size = 0;  ///< of one process
  int64_t window = 1;      ///< batches of an optimizer step
};
FirstEpoch first_epoch_of(const RunState& run);

/// Steps of a fit of `epochs` epochs, whose `batches` are those of the loader; nullopt if a number is unknown.
std::optional<int64_t> steps_of_epochs(const RunState& run, int64_t epochs, std::optional<int64_t> batches);

}  // namespace fulgur::detail
