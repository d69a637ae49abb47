#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace fulgur::detail {

/// Reports to the run's store once a second what this rank is doing, so that a rank that times out waiting for it can
/// say so.
class Heartbeat {
 public:
  Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t world_size);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// `what` must be a string literal.
  void set_activity(const char* what) noexcept { what_.store(what, std::memory_order_relaxed); }
  void set_steps_done(int64_t steps) noexcept { steps_.store(steps, std::memory_order_relaxed); }
  /// The exchange in progress, a string literal; nullptr for none. Returns the previous one.
  const char* set_exchange(const char* what) noexcept { return exchange_.exchange(what, std::memory_order_relaxed); }
  /// This rank has failed at its current activity. Reports to the store at once: the process may end before the next
  /// beat.
  void say_failed() noexcept;
  /// One line per rank: what it was doing when it last reported, and how long ago that was, to a tenth of a second.
  /// Waits a few seconds for a store that does not answer.
  std::string report() const;

 private:
  /// `backward at step 7`, `all_gather in training_step at step 7`, when seven steps are done.
  std::string now() const;
  void beat();
  void run();

  // Separate connections, made while the store is alive: reconnecting to a dead one would be tried for minutes.
  c10::intrusive_ptr<c10d::Store> store_, report_store_;
  const int64_t rank_, world_size_;
  std::atomic<const char*> what_{"start"};
  std::atomic<const char*> exchange_{nullptr};
  std::atomic<int64_t> steps_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

/// Marks the exchange in progress during its lifetime, for the report.
class ExchangeMark {
 public:
  ExchangeMark(Heartbeat& heartbeat, const char* what) : heartbeat_(heartbeat), before_(heartbeat.set_exchange(what)) {}
  ~ExchangeMark() { heartbeat_.set_exchange(before_); }
  ExchangeMark(const ExchangeMark&) = delete;
  ExchangeMark& operator=(const ExchangeMark&) = delete;

 private:
  Heartbeat& heartbeat_;
  const char* before_;
};

}  // namespace fulgur::detail
