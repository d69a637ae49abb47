#pragma once

#include <cstdint>

namespace fulgur::detail {

/// Which steps a profiler records: those of `torch.profiler.schedule`. After `skip_first` steps, cycles of `wait`,
/// `warmup` and `active` steps follow each other.
struct StepSchedule {
  enum class Phase { wait, warmup, record, record_last };

  int64_t skip_first = 0, wait = 0, warmup = 0, active = 1;
  int64_t repeat = 0;  ///< number of cycles; 0: until the run ends

  /// What happens in step 0, 1, 2, …; `record_last` is the last recorded step of a cycle.
  Phase at(int64_t step) const {
    if (step < skip_first) return Phase::wait;
    const int64_t length = wait + warmup + active, place = (step - skip_first) % length;
    if (repeat > 0 && (step - skip_first) / length >= repeat) return Phase::wait;
    if (place < wait) return Phase::wait;
    if (place < wait + warmup) return Phase::warmup;
    return place + 1 < length ? Phase::record : Phase::record_last;
  }
  /// The number of the cycle that contains a step after the first `skip_first`, from 0.
  int64_t cycle_of(int64_t step) const { return (step - skip_first) / (wait + warmup + active); }
};

}  // namespace fulgur::detail
