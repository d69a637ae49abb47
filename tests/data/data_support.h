#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/text/log.h"
#include "fulgur/data/tensor_dataset.h"

namespace fulgur::test {

inline std::shared_ptr<TensorDataset> numbers(int64_t count) {
  return std::make_shared<TensorDataset>(Batch({Batch::Entry{"x", at::arange(count, at::kLong)}}));
}

/// `x`: the index; `noise`: four random numbers of (seed, epoch, index). `before_read` is called for each index.
class WatchedDataset : public Dataset {
 public:
  explicit WatchedDataset(int64_t size, std::function<void(int64_t, const SampleContext&)> before_read = {})
      : size_(size), before_read_(std::move(before_read)) {}
  int64_t size() const override { return size_; }
  Batch prototype() const override {
    return Batch({Batch::Entry{"x", at::empty({1}, at::kLong)}, Batch::Entry{"noise", at::empty({1, 4}, at::kDouble)}});
  }
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
            const SampleContext& context) const override {
    auto* x = out["x"].mutable_data_ptr<int64_t>() + first_row;
    auto* noise = out["noise"].mutable_data_ptr<double>() + first_row * 4;
    for (const int64_t index : indices) {
      if (before_read_) before_read_(index, context);
      SplitMix64 random = context.random(index);
      *x++ = index;
      for (int i = 0; i < 4; ++i) *noise++ = random.uniform();
      ++reads;
    }
  }
  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t size_;
  std::function<void(int64_t, const SampleContext&)> before_read_;
};

/// Holds readers up until it is opened.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  void wait_for_a_reader() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

inline std::vector<int64_t> drain(Loader& loader) {
  std::vector<int64_t> seen;
  Batch batch;
  while (loader.next(batch)) {
    const auto* values = batch[0].const_data_ptr<int64_t>();
    seen.insert(seen.end(), values, values + batch.size());
  }
  return seen;
}

inline std::vector<int64_t> epoch_of(Loader& loader, int64_t epoch) {
  loader.start_epoch(epoch);
  return drain(loader);
}

/// Threads of this process.
inline int64_t thread_count() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

/// A joined thread may be in the list a moment longer.
inline bool threads_come_down_to(int64_t count) {
  for (int i = 0; i < 500 && thread_count() > count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return thread_count() <= count;
}

/// Collects what is logged as long as it lives.
class LogLines {
 public:
  LogLines() {
    log::reset_warnings();
    log::set_sink([](log::Level, const std::string& line, void* user) { static_cast<LogLines*>(user)->add(line); },
                  this);
  }
  ~LogLines() { log::set_sink(nullptr, nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    text_ += line + "\n";
  }
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace fulgur::test
