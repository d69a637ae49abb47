#include "reading/batch_worker_pool.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>

#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/current_device.h"
#include "reading/sample_error.h"
#include "reading/single_thread_guard.h"

namespace fulgur {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Large enough to justify a lock and perhaps a wake-up, which take a few microseconds.
constexpr double kPieceSeconds = 50e-6;

struct Slot {
  explicit Slot(std::shared_ptr<BatchTask> t) : task(std::move(t)), ready(task->whole) {
    if (ready) claimed = task->rows;
  }
  std::shared_ptr<BatchTask> task;
  int64_t claimed = 0;  ///< rows that some thread is reading or has read
  int64_t running = 0;  ///< threads at work on it
  bool ready = false;
  std::exception_ptr error;
  int64_t error_row = 0;
  double read_s = 0;
};

/// What a thread does now.
struct Piece {
  std::shared_ptr<Slot> slot;
  int64_t first = 0, count = 0;
  Clock::time_point since;
};

}  // namespace

// Shared by the threads and BatchWorkerPool: a thread stuck in a dataset may outlive it.
struct BatchWorkerPool::Shared {
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<std::shared_ptr<Slot>> slots;
  std::vector<Piece> pieces;  ///< by thread
  double row_s = 0;           ///< recent time per row
  int64_t busy = 0, alive = 0;
  const std::optional<at::Device> device =
      current_device();  ///< the run's, for datasets that make tensors on "the" device
  bool stop = false;

  std::shared_ptr<Slot> open_slot() const {
    for (const auto& slot : slots)
      if (slot->claimed < slot->task->rows) return slot;
    return nullptr;
  }

  int64_t piece_rows(const Slot& slot) const {
    const int64_t left = slot.task->rows - slot.claimed;
    if (row_s <= 0) return 1;  // the first one measures the cost of a row
    const double rows = kPieceSeconds / row_s;
    return rows >= static_cast<double>(left) ? left : std::max<int64_t>(static_cast<int64_t>(rows), 1);
  }

  void run(size_t who) {
    const SingleThreadGuard one_thread;
    const c10::OptionalDeviceGuard guard(device);
    std::unique_lock lock(mutex);
    while (!stop) {
      std::shared_ptr<Slot> slot = open_slot();
      if (!slot) {
        work.wait(lock);
        continue;
      }
      const int64_t first = slot->claimed, count = piece_rows(*slot);
      slot->claimed += count;
      ++slot->running;
      ++busy;
      pieces[who] = {slot, first, count, Clock::now()};
      lock.unlock();
      const auto error = exception_of([&] { slot->task->read(first, count); });
      lock.lock();
      const double took = Seconds(Clock::now() - pieces[who].since).count();
      slot->read_s += took;
      const double of_row = took / static_cast<double>(count);
      row_s = row_s <= 0 ? of_row : 0.8 * row_s + 0.2 * of_row;
      if (error) note_error(*slot, error, first);
      if (slot->running == 1 && slot->claimed == slot->task->rows) finish(lock, *slot, who);
      --slot->running;
      --busy;
      pieces[who] = {};
      // drop() waits until no thread is working, and has removed all slots; the consumer is woken only by whole
      // batches.
      if (slot->ready || (busy == 0 && slots.empty())) done.notify_all();
    }
    --alive;
    done.notify_all();
  }

  // Other threads already have rows before the bad one, so the first bad row of the batch is known only at the end.
  static void note_error(Slot& slot, const std::exception_ptr& error, int64_t row) {
    if (!slot.error || row < slot.error_row) {
      slot.error = error;
      slot.error_row = row;
    }
    slot.claimed = slot.task->rows;
  }

  void finish(std::unique_lock<std::mutex>& lock, Slot& slot, size_t who) {
    if (!slot.error && slot.task->recipe->collate) {
      pieces[who].first = 0;
      pieces[who].count = slot.task->rows;
      lock.unlock();
      const auto error = exception_of([&] { slot.task->finish(); });
      lock.lock();
      if (error) note_error(slot, error, 0);
    }
    slot.ready = true;
  }

  /// Which missing samples of the oldest batch the threads are reading.
  std::string waited_for() const {
    std::vector<std::string> parts;
    for (const Piece& piece : pieces) {
      if (!piece.slot || piece.slot != slots.front()) continue;
      parts.push_back(cat(list_samples(piece.slot->task->indices(piece.first, piece.count)), ", being read for ",
                          format_fixed(Seconds(Clock::now() - piece.since).count(), 1), " s"));
    }
    return parts.empty() ? "no thread is working on it" : join(parts, "; ");
  }
};

BatchWorkerPool::BatchWorkerPool(ReadAheadOptions options) : options_(options), shared_(std::make_shared<Shared>()) {
  shared_->pieces.resize(static_cast<size_t>(options_.workers));
  shared_->alive = options_.workers;
  const NoSignals no_signals;
  try {
    for (size_t who = 0; who < shared_->pieces.size(); ++who) {
      threads_.emplace_back([shared = shared_, who] { shared->run(who); });
      pthread_setname_np(threads_.back().native_handle(), "fulgur-data");
    }
  } catch (const std::system_error& error) {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->stop = true;
    }
    shared_->work.notify_all();
    for (auto& thread : threads_) thread.join();
    throw Error(cat("[data.DataLoader] the system must provide ", options_.workers, " threads; it provided ",
                    static_cast<int64_t>(threads_.size()), " (", error.what(), "). Lower num_workers."));
  }
}

BatchWorkerPool::~BatchWorkerPool() { abandon(); }

void BatchWorkerPool::abandon() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->slots.clear();
    shared_->stop = true;
    shared_->work.notify_all();
    if (stuck_) shared_->done.wait_for(lock, std::chrono::seconds(1), [&] { return shared_->alive == 0; });
    stuck_ = stuck_ && shared_->alive > 0;
  }
  for (auto& thread : threads_) {
    if (stuck_)
      thread.detach();
    else
      thread.join();
  }
}

void BatchWorkerPool::push(std::shared_ptr<BatchTask> task) {
  auto slot = std::make_shared<Slot>(std::move(task));
  const bool ready = slot->ready;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->slots.push_back(std::move(slot));
  }
  ++waiting_;
  if (!ready) shared_->work.notify_all();
}

Batch BatchWorkerPool::take() {
  std::unique_lock lock(shared_->mutex);
  const Slot& slot = *shared_->slots.front();
  if (!slot.ready) {
    try {
      wait_for_batch(lock, shared_->done, options_.patience,
                     {.loader = "DataLoader",
                      .set = slot.task->recipe->name,
                      .ready = [&] { return slot.ready; },
                      .what = [&] { return shared_->waited_for(); }});
    } catch (...) {
      stuck_ = true;
      throw;
    }
  }
  const std::shared_ptr<Slot> taken = std::move(shared_->slots.front());
  shared_->slots.pop_front();
  --waiting_;
  lock.unlock();
  last_read_s_ = taken->read_s;
  if (taken->error) std::rethrow_exception(taken->error);
  return std::move(taken->task->batch);
}

void BatchWorkerPool::drop() {
  std::unique_lock lock(shared_->mutex);
  for (auto& slot : shared_->slots) slot->claimed = slot->task->rows;
  std::deque<std::shared_ptr<Slot>> dropped;
  dropped.swap(shared_->slots);
  waiting_ = 0;
  const auto idle = [&] { return shared_->busy == 0; };
  const double timeout_s = options_.patience.timeout_s;
  if (timeout_s <= 0)
    shared_->done.wait(lock, idle);
  else if (!shared_->done.wait_for(lock, Seconds(timeout_s), idle))
    stuck_ = true;
}

}  // namespace fulgur
