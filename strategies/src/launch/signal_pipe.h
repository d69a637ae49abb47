#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <vector>

namespace fulgur::detail {

/// Signals of this process as bytes in a pipe, whichever thread gets them. One at a time in a process.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  /// Those that came, SIGCHLD among them; waits for one no longer than `timeout` (negative: for ever).
  std::vector<int> wait(std::chrono::milliseconds timeout);
  /// Ends a `wait` from another thread.
  static void wake();
  /// In a forked child: handlers and mask as they were before. Async-signal-safe.
  void restore() const;

 private:
  static constexpr std::array kCaught{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
  std::array<struct sigaction, kCaught.size()> old_{};
  sigset_t old_mask_{};
  int read_ = -1;
};

}  // namespace fulgur::detail
