#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// Progress of something that repeats. On resume the counters fall back to what was completed.
struct Counter {
  int64_t ready = 0, started = 0, processed = 0, completed = 0;
  void reset() { *this = {}; }
  void fall_back() { ready = started = processed = completed; }
};

/// Counters of a fit: over the whole run (`total`) and inside the epoch (`current`).
struct FULGUR_API Progress final : Stateful {
  int64_t epoch = 0;          ///< current epoch, counted from 0
  int64_t global_step = 0;    ///< training steps over the run, regardless of how many optimizers stepped in each
  int64_t skipped_steps = 0;  ///< steps the device skipped because of non-finite gradients
  /// Training samples of all ranks, and tokens if the module counts them. With several ranks, those of the others are
  /// estimated from this rank's until the ranks synchronize; once `RunContext::count_each_batch` was called, they are
  /// exact.
  int64_t samples_seen = 0, tokens_seen = 0;
  int64_t own_samples = 0, own_tokens = 0;  ///< samples and tokens of this rank, in this process
  double fit_time_s = 0;                    ///< seconds of the earlier parts of a resumed fit
  Counter batches_total, batches;           ///< counts training batches over the run, and in this epoch
  Counter epochs;
  int64_t validations = 0;  ///< completed validation runs

  /// Whether the current epoch has begun: its start hooks were called and have returned. A resume with larger batches
  /// may continue an epoch of which no new batch is complete.
  bool in_epoch() const { return epochs.started > epoch; }
  /// Whether the current epoch has trained all its batches: only what follows them is left, such as a validation.
  bool at_epoch_end() const { return epochs.processed > epoch; }
  /// Epochs that are done, with the fraction of the current one if its number of batches is known. An epoch whose end
  /// has begun counts as done.
  double epochs_done(std::optional<int64_t> batches_in_epoch) const;

  StateTree state() const override;
  void load_state(const StateTree& state) override;
};

}  // namespace fulgur
