#include "fulgur/core/system/spin_limit.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "fulgur/core/system/cpu_waits.h"
#include "fulgur/core/system/parked_threads.h"
#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"

namespace fulgur::detail {

bool SpinRule::limits(double share) {
  constexpr double kTaken = 0.1, kFree = 0.03;
  constexpr int64_t kQuartersTaken = 2, kQuartersFree = 4, kFirstPause = 16, kLongestPause = 256;
  ++quarters_;
  in_a_row_ = (limited_ ? share < kFree : share >= kTaken) ? in_a_row_ + 1 : 0;
  const bool is_trial = limited_ && quarters_ >= pause_;
  if (!limited_ && quarters_ > kLongestPause) pause_ = kFirstPause;
  if (in_a_row_ < (limited_ ? kQuartersFree : kQuartersTaken) && !is_trial) return limited_;
  if (is_trial) pause_ = std::min(2 * pause_, kLongestPause);
  limited_ = !limited_;
  in_a_row_ = quarters_ = 0;
  return limited_;
}

std::unique_ptr<SpinLimit> SpinLimit::of_run(int64_t threads) {
  const bool is_chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (threads <= 1 || is_chosen || !ParkedThreads::are_possible(threads)) return nullptr;
  try {
    return std::unique_ptr<SpinLimit>(new SpinLimit(threads));
  } catch (const Error&) {
    return nullptr;  // the system refuses a thread: the run computes without this
  }
}

SpinLimit::SpinLimit(int64_t threads) : threads_(threads) {
  thread_ = start_thread("core.threads", "Set trainer.num_threads to 1.", [this] { watch(); });
}

SpinLimit::~SpinLimit() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void SpinLimit::watch() {
  CpuWaits waits;
  SpinRule rule;
  std::optional<ParkedThreads> parked;
  bool reported = false;
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(250), [this] { return ends_; })) {
    // Waiting for a thread of this process alone, such as a worker of the loader, is shorter if threads spin.
    constexpr double kOthers = 0.2;
    const double share = waits.largest_share().value_or(0), others = waits.used_by_others().value_or(0);
    if (!rule.limits(others < kOthers ? 0 : share)) {
      parked.reset();
      continue;
    }
    if (parked) continue;
    try {
      parked.emplace(threads_);
    } catch (const Error&) {
      return;  // the run continues as it is
    }
    if (!std::exchange(reported, true))
      log::info(
          "threads: other processes use the CPUs, so threads that wait for each other sleep meanwhile (num_threads: 1 "
          "avoids it)");
  }
}

}  // namespace fulgur::detail
