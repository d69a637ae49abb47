#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace fulgur::simulated_nccl {

/// Waits for another process by polling, since shared memory does not show whether that process still runs. Polls often
/// at first, then every millisecond. After SIMULATED_NCCL_TIMEOUT seconds without `progress()` it ends this process. If
/// the variable is not set, it waits forever, like NCCL.
class Waiting {
 public:
  /// `what` describes the wait, for the message of a timeout.
  explicit Waiting(std::function<std::string()> what) : what_(std::move(what)) {}
  void pause();
  void progress();

 private:
  std::function<std::string()> what_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  int pauses_ = 0;
};

}  // namespace fulgur::simulated_nccl
