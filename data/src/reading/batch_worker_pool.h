#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "reading/batch_task.h"
#include "reading/read_timeouts.h"

namespace fulgur {

struct ReadAheadOptions {
  int64_t workers = 1;
  ReadTimeouts patience = {};
};

/// Threads that prefetch batches. Tasks are pushed and taken in order by one thread. The threads share each batch: they
/// take pieces of it, small ones if samples are costly, whole batches if a piece would be done before another thread
/// woke up.
class BatchWorkerPool {
 public:
  explicit BatchWorkerPool(ReadAheadOptions options);
  /// Ends the threads after their current read. Threads that timed out end by themselves.
  ~BatchWorkerPool();
  BatchWorkerPool(const BatchWorkerPool&) = delete;
  BatchWorkerPool& operator=(const BatchWorkerPool&) = delete;

  void push(std::shared_ptr<BatchTask> task);
  /// Tasks pushed and not yet taken.
  size_t waiting() const { return waiting_; }
  /// Waits for the oldest task and returns its batch. Rethrows its read error (that of its first bad row), or throws a
  /// DataError after the timeout; the task is then still there.
  Batch take();
  /// Discards all tasks, and waits for current reads.
  void drop();
  int64_t workers() const { return options_.workers; }
  /// Seconds that all threads together spent on the last batch taken.
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
