#pragma once

namespace fulgur {

/// During its lifetime, LibTorch operations on this thread use one thread: results of sums then do not depend on the
/// number of workers, and workers do not each start a thread pool.
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
