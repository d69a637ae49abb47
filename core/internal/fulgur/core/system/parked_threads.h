#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// Threads of OpenMP that sleep. GCC's OpenMP lets a thread that waits for others spin for some milliseconds, but only
/// a microsecond while it has more threads than CPUs (GOMP_SPINCOUNT in its manual). This makes it have more until it
/// is destroyed, so that threads which wait leave their CPUs to other processes. Results do not change.
class FULGUR_API ParkedThreads {
 public:
  /// Whether this build uses GCC's OpenMP, and `threads` threads that compute need at most 32 more.
  static bool are_possible(int64_t threads);
  /// Beside `threads` threads that compute. Throws an Error if the system does not provide so many.
  explicit ParkedThreads(int64_t threads);
  ~ParkedThreads();
  ParkedThreads(const ParkedThreads&) = delete;
  ParkedThreads& operator=(const ParkedThreads&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace fulgur::detail
