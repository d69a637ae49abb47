#include "fulgur/checkpoint/async_writer.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "snapshot/tensor_snapshot.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

using Result = AsyncCheckpointWriter::Result;
using Rules = AsyncCheckpointWriter::Rules;

CheckpointError not_enough_memory(const char* where) {
  return CheckpointError(cat("[checkpoint.", where,
                             "] there is not enough memory. An asynchronous save needs host memory of the size of the "
                             "state; with trainer.async_checkpoint: false, a save needs no copy of it."));
}

// LibTorch's CPU allocator throws a plain c10::Error when memory ends.
bool says_that_memory_ended(std::string_view text) { return text.find("can't allocate memory") != text.npos; }

// The current exception, as a CheckpointError.
CheckpointError current_error(const char* where) {
  try {
    throw;
  } catch (const CheckpointError& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return not_enough_memory(where);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (says_that_memory_ended(text)) return not_enough_memory(where);
    return CheckpointError(cat("[checkpoint.", where, "] ", text));
  } catch (const std::exception& error) {
    return CheckpointError(cat("[checkpoint.", where, "] ", error.what()));
  } catch (...) {
    return CheckpointError(cat("[checkpoint.", where, "] an exception of unknown type was thrown."));
  }
}

}  // namespace

class AsyncCheckpointWriter::Worker {
 public:
  Worker() { live().add(this); }

  ~Worker() {
    live().remove(this);
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [&] { return !job_; });
      stopping_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  uint64_t submit(const fs::path& folder, const CheckpointContent& content, Rules rules) {
    wait_idle();
    Job job;
    try {
      CheckpointContent copies = snapshot_.take(content, &rules.facts, rules.is_late);
      job = {++tickets_, folder, std::move(copies), std::move(rules)};
      start_thread();
    } catch (...) {
      throw current_error("submit");
    }
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
      complete_ = !job_->rules.held;
    }
    wake_.notify_one();
    return tickets_;
  }

  std::vector<Result> poll() {
    const std::lock_guard lock(mutex_);
    return std::exchange(results_, {});
  }

  void wait_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return !job_; });
  }

  /// Without a ticket, completes any save in flight.
  void complete(std::optional<uint64_t> ticket, std::function<void(CheckpointContent&)> change) {
    {
      const std::lock_guard lock(mutex_);
      if (!job_ || (ticket && job_->ticket != *ticket) || std::exchange(complete_, true)) return;
      change_ = std::move(change);
    }
    completed_.notify_one();
  }

  void before_writes() { snapshot_.before_writes(); }

  bool busy() const {
    const std::lock_guard lock(mutex_);
    return job_.has_value();
  }

 private:
  struct Job {
    uint64_t ticket = 0;
    fs::path folder;
    CheckpointContent content;
    Rules rules;
  };

  // The workers of the process: exit() waits for their saves.
  class Live {
   public:
    void add(Worker* worker) {
      const std::lock_guard lock(mutex_);
      workers_.insert(worker);
    }
    void remove(Worker* worker) {
      const std::lock_guard lock(mutex_);
      workers_.erase(worker);
    }
    void wait_idle() {
      const std::lock_guard lock(mutex_);
      for (Worker* worker : workers_) {
        worker->complete(std::nullopt, {});
        worker->wait_idle();
      }
    }

   private:
    std::mutex mutex_;
    std::set<Worker*> workers_;
  };

  static Live& live() {
    // Never destroyed: workers may be static objects.
    static Live* const all = new Live;
    [[maybe_unused]] static const int registered = std::atexit([] { live().wait_idle(); });
    return *all;
  }

  void start_thread() {
    if (thread_.joinable()) return;
    thread_ = fulgur::start_thread("checkpoint.async", "Set trainer.async_checkpoint to false.", [this] { work(); });
  }

  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_ || stopping_; });
      if (!job_) return;
      lock.unlock();
      Result result = write(*job_);
      lock.lock();
      results_.push_back(std::move(result));
      job_.reset();
      idle_.notify_all();
    }
  }

  void wait_until_complete(Job& job) {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [&] { return complete_; });
    const auto change = std::exchange(change_, {});
    lock.unlock();
    if (change) change(job.content);
  }

  Result write(Job& job) {
    try {
      snapshot_.finish();
      if (job.rules.refuse)
        if (const auto why = job.rules.refuse(job.content, job.rules.facts))
          return {job.ticket, job.folder, CheckpointError(*why), /*refused=*/true};
      wait_until_complete(job);
      return {job.ticket,
              job.rules.write ? job.rules.write(job.folder, job.content)
                              : write_verified_checkpoint(job.folder, job.content),
              std::nullopt};
    } catch (...) {
      return {job.ticket, job.folder, current_error("write")};
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_, completed_;
  std::optional<Job> job_;  // the job in flight; the thread owns it until the thread resets it
  std::vector<Result> results_;
  std::function<void(CheckpointContent&)> change_;
  bool complete_ = true, stopping_ = false;
  // Used by the caller while nothing is in flight. During a save, the thread waits for its copies, and the caller makes
  // its streams wait.
  detail::TensorSnapshot snapshot_;
  uint64_t tickets_ = 0;
  std::thread thread_;
};

AsyncCheckpointWriter::AsyncCheckpointWriter() : worker_(std::make_unique<Worker>()) {}

AsyncCheckpointWriter::~AsyncCheckpointWriter() {
  worker_->complete(std::nullopt, {});
  worker_->wait_idle();
  for (const Result& result : worker_->poll())
    if (result.error) log::error(result.error->what());
}

uint64_t AsyncCheckpointWriter::submit(const fs::path& folder, const CheckpointContent& content, Rules rules) {
  return worker_->submit(folder, content, std::move(rules));
}
uint64_t AsyncCheckpointWriter::submit(const fs::path& folder, const CheckpointContent& content) {
  return submit(folder, content, Rules());
}
void AsyncCheckpointWriter::complete(uint64_t ticket, std::function<void(CheckpointContent&)> change) {
  worker_->complete(ticket, std::move(change));
}
void AsyncCheckpointWriter::before_writes() { worker_->before_writes(); }
std::vector<Result> AsyncCheckpointWriter::poll() { return worker_->poll(); }
std::vector<Result> AsyncCheckpointWriter::wait() {
  worker_->wait_idle();
  return worker_->poll();
}
bool AsyncCheckpointWriter::busy() const { return worker_->busy(); }

}  // namespace fulgur
