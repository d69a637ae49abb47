#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// How long the threads of this process wait for CPUs that other processes use, by Linux's schedstat and stat. For one
/// thread.
class FULGUR_API CpuWaits {
 public:
  /// Since the last call, how many CPUs other processes have used of those that this one may use; 0 in the first call.
  /// nullopt if the system does not say. In steps of some hundredths for each CPU.
  std::optional<double> used_by_others();
  /// Since the last call, the largest share of its time (0 to 1) that a busy thread has waited; 0 if no thread was
  /// busy, and in the first call. A thread is busy if it ran or waited for a fifth of the time at least. nullopt if the
  /// system does not say.
  std::optional<double> largest_share();

 private:
  /// Nanoseconds.
  struct Times {
    uint64_t ran, waited;
  };
  std::unordered_map<int, Times> before_;  // by thread
  std::chrono::steady_clock::time_point last_;
  std::optional<double> others_before_;  // CPU seconds, and when
  std::chrono::steady_clock::time_point others_at_;
};

}  // namespace fulgur::detail
