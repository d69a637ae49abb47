#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// Decides, for each quarter of a second, whether threads that wait for each other may spin.
class FULGUR_API SpinRule {
 public:
  /// `share`: of the quarter before, by CpuWaits; 0 if no other process used the CPUs. Spinning is limited after two
  /// quarters in a row in which other threads took the CPUs. It is allowed again after a second in which they were
  /// free, or for a trial, since threads that sleep wait for CPUs a little, too: after 4 s, and later after twice as
  /// long each time, at most 64 s, until a minute has passed without a limit.
  bool limits(double share);

 private:
  bool limited_ = false;
  int64_t in_a_row_ = 0;  // quarters that speak against the present state
  int64_t quarters_ = 0;  // in the present state
  int64_t pause_ = 16;    // quarters until the next trial
};

/// Keeps threads of OpenMP from spinning while other processes use the CPUs, in which a spinning thread takes the time
/// from the one that it waits for. Its own thread watches the process until this is destroyed.
class FULGUR_API SpinLimit {
 public:
  /// For a run that computes with `threads` threads. nullptr if there is nothing to limit: one thread, a user's choice
  /// in OMP_WAIT_POLICY or GOMP_SPINCOUNT, or another OpenMP than GCC's; or if the system provides no thread.
  static std::unique_ptr<SpinLimit> of_run(int64_t threads);
  ~SpinLimit();
  SpinLimit(const SpinLimit&) = delete;
  SpinLimit& operator=(const SpinLimit&) = delete;

 private:
  explicit SpinLimit(int64_t threads);
  void watch();
  const int64_t threads_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace fulgur::detail
