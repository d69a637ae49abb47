#include "fulgur/core/system/parked_threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>

#include "fulgur/core/system/start_thread.h"

namespace fulgur::detail {
namespace {

// Starts `count` threads of OpenMP, this one included, which sleep until it ends.
void start_team([[maybe_unused]] int count) {
#ifdef _OPENMP
  std::atomic<int> started = 0;  // g++ leaves out a region that does nothing
#pragma omp parallel num_threads(count)
  ++started;
#endif
}

// With the one that starts it, which OpenMP does not count, and the threads that compute, it is more than the CPUs.
int64_t team_beside([[maybe_unused]] int64_t threads) {
#ifdef _OPENMP
  return std::max<int64_t>(2, omp_get_num_procs() - threads + 2);
#else
  return 0;
#endif
}

}  // namespace

bool ParkedThreads::are_possible(int64_t threads) {
  constexpr int64_t kMost = 32;
  const int64_t team = team_beside(threads);
  return team > 0 && team <= kMost;
}

ParkedThreads::ParkedThreads(int64_t threads) {
  thread_ = start_thread("core.threads", "Set trainer.num_threads to 1.", [this, team = team_beside(threads)] {
    start_team(static_cast<int>(team));
    std::unique_lock lock(mutex_);
    started_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return ends_; });
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return started_; });
}

ParkedThreads::~ParkedThreads() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace fulgur::detail
