#include "process/run_clock.h"

#include <atomic>

namespace fulgur::detail {
namespace {

std::atomic<std::chrono::steady_clock::time_point (*)()> replaced_run_clock = nullptr;

}  // namespace

std::chrono::steady_clock::time_point run_clock_now() {
  const auto clock = replaced_run_clock.load(std::memory_order_relaxed);
  return clock ? clock() : std::chrono::steady_clock::now();
}

void set_run_clock(std::chrono::steady_clock::time_point (*clock)()) { replaced_run_clock = clock; }

}  // namespace fulgur::detail
