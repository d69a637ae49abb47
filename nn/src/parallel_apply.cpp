#include "fulgur/nn/parallel_apply.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "checkpoint_frame.h"
#include "fulgur/core/system/no_signals.h"

namespace fulgur::nn {
namespace {

namespace autocast = at::autocast;

// A thread that runs one job after another.
class Worker {
 public:
  Worker() {
    const NoSignals no_signals;
    std::thread([this] { run(); }).detach();
  }

  /// How many operations of autograd its thread had made when it was given back.
  uint64_t operations = 0;

  void start(std::function<void()> job) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = std::move(job);
    }
    wakes_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wakes_.wait(lock, [this] { return static_cast<bool>(job_); });
        job = std::exchange(job_, nullptr);
      }
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::function<void()> job_;
};

// Workers without a job. Neither the list nor the workers are ever destroyed: at the end of the process they sleep.
class Pool {
 public:
  static Pool& instance() {
    static auto* pool = new Pool;
    return *pool;
  }
  Worker& take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(all_.size() + 1);  // so that `give_back` cannot fail
      return *all_.emplace_back(std::make_unique<Worker>());
    }
    Worker* worker = idle_.back();
    idle_.pop_back();
    return *worker;
  }
  void give_back(Worker& worker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(&worker);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> idle_;
};

// `count` workers, or none if the system provides no more threads.
std::vector<Worker*> take_workers(size_t count) {
  Pool& pool = Pool::instance();
  std::vector<Worker*> workers;
  workers.reserve(count);
  try {
    while (workers.size() < count) workers.push_back(&pool.take());
  } catch (...) {
    for (Worker* worker : workers) pool.give_back(*worker);
    throw;
  }
  return workers;
}

// The part of the caller's autocast state that at::ThreadLocalState omits. The cast cache is global to the process:
// within a region of the caller, the caller clears it, not a worker at the end of its own region.
class AutocastOfCaller {
 public:
  AutocastOfCaller() : cache_(autocast::is_autocast_cache_enabled()), inside_(autocast::increment_nesting() > 1) {
    autocast::decrement_nesting();
  }
  template <class Work>
  void apply(const Work& work) const {
    const bool before = autocast::is_autocast_cache_enabled();
    autocast::set_autocast_cache_enabled(cache_);
    if (inside_) autocast::increment_nesting();
    work();
    if (inside_) autocast::decrement_nesting();
    autocast::set_autocast_cache_enabled(before);
  }

 private:
  bool cache_, inside_;
};

// Autograd numbers operations by thread, and the backward pass runs those with greater numbers first. The sum of the
// gradients of a tensor that several threads use has the same order in each run only if its threads count alike.
void count_operations_to(uint64_t number) {
  while (at::sequence_number::peek() < number) at::sequence_number::get_and_increment();
}

}  // namespace

void parallel_apply(size_t count, const std::function<void(size_t)>& work) {
  if (count == 0) return;
  if (count == 1) return work(0);
  std::vector<std::exception_ptr> thrown(count);
  const auto guarded = [&](size_t index) {
    try {
      work(index);
    } catch (...) {
      thrown[index] = std::current_exception();
    }
  };
  const at::ThreadLocalState state;
  const AutocastOfCaller autocast;
  const bool recomputing = in_recompute();
  Pool& pool = Pool::instance();
  const std::vector<Worker*> workers = take_workers(count - 1);
  uint64_t operations = at::sequence_number::peek();
  for (const Worker* worker : workers) operations = std::max(operations, worker->operations);
  std::latch ended(static_cast<std::ptrdiff_t>(count - 1));
  std::vector<uint64_t> made(count - 1);
  const auto job = [&](size_t index) {
    {
      const at::ThreadLocalStateGuard as_the_caller(state);
      const RecomputeMark mark(recomputing);
      count_operations_to(operations);
      autocast.apply([&] { guarded(index); });
    }
    made[index - 1] = workers[index - 1]->operations = at::sequence_number::peek();
    pool.give_back(*workers[index - 1]);
    ended.count_down();
  };
  // Two words, which std::function stores without an allocation: nothing may fail once a worker runs.
  for (size_t i = 1; i < count; ++i) workers[i - 1]->start([&job, i] { job(i); });
  count_operations_to(operations);
  guarded(0);
  ended.wait();
  count_operations_to(*std::max_element(made.begin(), made.end()));
  for (const std::exception_ptr& exception : thrown)
    if (exception) std::rethrow_exception(exception);
}

std::vector<int64_t> even_parts(int64_t samples, int64_t parts) {
  parts = std::min(parts, samples);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < parts; ++i) sizes.push_back(samples / parts + (i < samples % parts ? 1 : 0));
  return sizes;
}

}  // namespace fulgur::nn
