#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace fulgur::detail {

/// Tells the run's store once a second what this rank does, so that another, which waits for it in vain, can say so.
class Heartbeat {
 public:
  Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t world_size);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// `what` is a literal.
  void set_activity(const char* what) noexcept { what_.store(what, std::memory_order_relaxed); }
  void set_steps_done(int64_t steps) noexcept { steps_.store(steps, std::memory_order_relaxed); }
  /// A line for each rank: what it was last seen doing, and when.
  std::string report() const;

 private:
  /// `backward at step 7`: seven steps are done.
  std::string now() const;
  void beat();
  void run();

  // Connections of their own, made while the store is alive: to one that is gone a new one would be tried for minutes.
  c10::intrusive_ptr<c10d::Store> store_, report_store_;
  const int64_t rank_, world_size_;
  std::atomic<const char*> what_{"start"};
  std::atomic<int64_t> steps_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace fulgur::detail
