#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace fulgur::test {

/// Threads that compute all the time.
class BusyThreads {
 public:
  explicit BusyThreads(unsigned count) {
    for (unsigned i = 0; i < count; ++i)
      threads_.emplace_back([this] {
        while (!ends_) {
        }
      });
  }
  ~BusyThreads() {
    ends_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyThreads(const BusyThreads&) = delete;
  BusyThreads& operator=(const BusyThreads&) = delete;

 private:
  std::atomic<bool> ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fulgur::test
