#include "ranks/waiting.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ranks/report.h"

namespace fulgur::simulated_nccl {
namespace {

constexpr int kYields = 50;
constexpr int kMostMicroseconds = 1000;

double timeout_s() {
  static const double value = [] {
    const char* text = std::getenv("SIMULATED_NCCL_TIMEOUT");
    if (text == nullptr || *text == '\0') return 0.0;
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (*end == '\0' && seconds >= 0) return seconds;
    // With a misspelt setting, a test could pass for the wrong reason.
    say("SIMULATED_NCCL_TIMEOUT is '" + std::string(text) + "'; it must be a number of seconds, at least 0");
    std::_Exit(2);
  }();
  return value;
}

}  // namespace

void Waiting::pause() {
  if (++pauses_ <= kYields) {
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(kMostMicroseconds, 20 * (pauses_ - kYields))));
  if (timeout_s() <= 0 ||
      std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count() < timeout_s())
    return;
  say("no progress for " + std::to_string(timeout_s()) + " s (SIMULATED_NCCL_TIMEOUT): " + what_());
  std::abort();
}

void Waiting::progress() {
  if (pauses_ == 0) return;
  pauses_ = 0;
  since_ = std::chrono::steady_clock::now();
}

}  // namespace fulgur::simulated_nccl
