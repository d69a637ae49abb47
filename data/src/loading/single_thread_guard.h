#pragma once

namespace fulgur {

/// LibTorch's operations on this thread use one thread as long as this lives: results of sums do not depend on the
/// number of workers then, and workers do not each start a team of threads.
class SingleThreadGuard {
 public:
  SingleThreadGuard();
  ~SingleThreadGuard();
  SingleThreadGuard(const SingleThreadGuard&) = delete;
  SingleThreadGuard& operator=(const SingleThreadGuard&) = delete;

 private:
  int before_;
};

}  // namespace fulgur
