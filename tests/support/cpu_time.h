#pragma once

#include <ctime>

namespace fulgur::test {

/// CPU time since it was made, in seconds: of the calling thread, and of all others of the process.
class CpuTime {
 public:
  double of_own() const { return seconds(CLOCK_THREAD_CPUTIME_ID) - own_; }
  double of_others() const { return seconds(CLOCK_PROCESS_CPUTIME_ID) - all_ - of_own(); }

 private:
  static double seconds(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  const double own_ = seconds(CLOCK_THREAD_CPUTIME_ID), all_ = seconds(CLOCK_PROCESS_CPUTIME_ID);
};

}  // namespace fulgur::test
