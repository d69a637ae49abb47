#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// Signals of this process as bytes in a pipe, whichever thread receives them. One at a time per process.
class FULGUR_API SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  /// The received signals, including SIGCHLD; waits at most `timeout` for one (negative: forever).
  std::vector<int> wait(std::chrono::milliseconds timeout);
  /// Ends a `wait` from another thread.
  static void wake();
  /// In a forked child: restores handlers and mask. Async-signal-safe.
  void restore() const;

 private:
  static constexpr std::array kCaught{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
  std::array<struct sigaction, kCaught.size()> old_{};
  sigset_t old_mask_{};
  int read_ = -1;
};

}  // namespace fulgur::detail
