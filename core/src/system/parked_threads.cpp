#include "fulgur/core/system/parked_threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

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

#ifdef _OPENMP
// As OpenMP has counted them, which is about now.
const int64_t cpus_at_start = omp_get_num_procs();
#endif

// With the one that starts it, which OpenMP does not count, and the threads that compute, it is more than the CPUs.
int64_t team_beside([[maybe_unused]] int64_t threads) {
#ifdef _OPENMP
  return std::max<int64_t>(2, cpus_at_start - threads + 2);
#else
  return 0;
#endif
}

std::thread start(const std::function<void()>& work) {
  return start_thread("core.threads", "Set trainer.num_threads to 1.", work);
}

// OpenMP ends the process if the system refuses it a thread.
void try_threads(int64_t count) {
  std::mutex mutex;
  std::condition_variable ended;
  bool ends = false;
  std::vector<std::thread> threads;
  const auto end = [&] {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    ended.notify_all();
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (int64_t i = 0; i < count; ++i)
      threads.push_back(start([&] {
        std::unique_lock lock(mutex);
        ended.wait(lock, [&] { return ends; });
      }));
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace

bool ParkedThreads::are_possible(int64_t threads) {
  constexpr int64_t kMost = 32;
  const int64_t team = team_beside(threads);
  return team > 0 && team <= kMost;
}

ParkedThreads::ParkedThreads(int64_t threads) {
  const int64_t team = team_beside(threads);
  try_threads(team);
  thread_ = start([this, team] {
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
