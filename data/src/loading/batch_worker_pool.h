#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "loading/batch_task.h"
#include "loading/read_timeouts.h"

namespace fulgur {

struct ReadAheadOptions {
  int64_t workers = 1;
  ReadTimeouts patience = {};
};

/// Threads that read batches. Tasks are pushed and taken in order by one thread. The threads share each batch: they
/// take pieces of it, small ones where samples are costly, whole batches where a piece would be done before another
/// thread woke.
class BatchWorkerPool {
 public:
  explicit BatchWorkerPool(ReadAheadOptions options);
  /// Ends the threads, after what they read at this moment. Threads that were waited for in vain end by themselves.
  ~BatchWorkerPool();
  BatchWorkerPool(const BatchWorkerPool&) = delete;
  BatchWorkerPool& operator=(const BatchWorkerPool&) = delete;

  void push(std::shared_ptr<BatchTask> task);
  /// Tasks that were pushed and not taken.
  size_t waiting() const { return waiting_; }
  /// Waits for the oldest task and gives its batch. Throws what its reading threw (the error of its first bad row), or
  /// a DataError after the timeout; then the task is still there.
  Batch take();
  /// Forgets all tasks, and waits for what is being read.
  void drop();
  int64_t workers() const { return options_.workers; }
  /// Seconds that the threads spent on the last batch that was taken, all together.
  double last_read_s() const { return last_read_s_; }

 private:
  struct Shared;
  void abandon();

  ReadAheadOptions options_;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  size_t waiting_ = 0;
  double last_read_s_ = 0;
  bool stuck_ = false;
};

}  // namespace fulgur
