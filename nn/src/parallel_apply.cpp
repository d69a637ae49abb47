#include "fulgur/nn/parallel_apply.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <condition_variable>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ambient_state.h"
#include "fulgur/core/no_signals.h"

namespace fulgur::nn {
namespace {

// A thread that does one job after another.
class Worker {
 public:
  Worker() {
    const NoSignals no_signals;
    std::thread([this] { run(); }).detach();
  }

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

// Workers without a job. Never destroyed, nor are they: at the end of the process they sleep.
class Pool {
 public:
  static Pool& instance() {
    static auto* pool = new Pool;
    return *pool;
  }
  Worker& take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return *all_.emplace_back(std::make_unique<Worker>());
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

std::vector<at::Device> types_with_autocast() {
  if (at::isPrivateUse1HooksRegistered()) return {at::Device(at::kPrivateUse1, 0)};
  return {};
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
  const AutocastState autocast(types_with_autocast());
  std::latch ended(static_cast<std::ptrdiff_t>(count - 1));
  Pool& pool = Pool::instance();
  for (size_t i = 1; i < count; ++i) {
    Worker& worker = pool.take();
    worker.start([&, i] {
      {
        const at::ThreadLocalStateGuard as_the_caller(state);
        const AutocastState::Guard with_its_autocast(autocast);
        guarded(i);
      }
      pool.give_back(worker);
      ended.count_down();
    });
  }
  guarded(0);
  ended.wait();
  for (const std::exception_ptr& exception : thrown)
    if (exception) std::rethrow_exception(exception);
}

}  // namespace fulgur::nn
