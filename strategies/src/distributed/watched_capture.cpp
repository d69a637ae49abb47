#include "distributed/watched_capture.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "distributed/forwarding_capture.h"

namespace fulgur::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{50};

}  // namespace

/// Launches in progress, and the thread that watches them.
class LaunchWatch {
 public:
  LaunchWatch(c10::Device device, std::function<std::chrono::milliseconds()> timeout, std::function<void()> on_late)
      : device_(device), timeout_(std::move(timeout)), on_late_(std::move(on_late)), thread_([this] { look(); }) {}
  ~LaunchWatch() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  LaunchWatch(const LaunchWatch&) = delete;
  LaunchWatch& operator=(const LaunchWatch&) = delete;

  void launched() {
    c10::Event done(device_.type());
    done.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    const std::lock_guard lock(mutex_);
    under_way_.emplace_back(Clock::now(), std::move(done));
  }

 private:
  void look() {
    std::unique_lock lock(mutex_);
    while (!ends_ && !late_) {
      wake_.wait_for(lock, kLook);
      if (ends_ || !oldest_is_late()) continue;
      late_ = true;
      lock.unlock();
      on_late_();
      lock.lock();
    }
  }

  bool oldest_is_late() {
    try {
      while (!under_way_.empty() && under_way_.front().second.query()) under_way_.pop_front();
    } catch (const std::exception&) {
      under_way_.clear();  // the device has failed; any wait for it reports the error
    }
    // A launch waits for earlier ones, whose time does not count against its own limit.
    if (under_way_.empty()) {
      first_ = {};
      return false;
    }
    if (first_ != under_way_.front().first) {
      first_ = under_way_.front().first;
      first_since_ = Clock::now();
    }
    return Clock::now() - first_since_ > timeout_();
  }

  const c10::Device device_;
  const std::function<std::chrono::milliseconds()> timeout_;
  const std::function<void()> on_late_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<Clock::time_point, c10::Event>> under_way_;
  Clock::time_point first_, first_since_;
  bool ends_ = false, late_ = false;
  std::thread thread_;
};

namespace {

class WatchedCapture final : public ForwardingCapture {
 public:
  WatchedCapture(std::unique_ptr<GraphCapture> inner, std::shared_ptr<LaunchWatch> watch)
      : ForwardingCapture(std::move(inner)), watch_(std::move(watch)) {}
  void replay() override {
    ForwardingCapture::replay();
    watch_->launched();
  }
  std::unique_ptr<GraphCapture> another() override { return std::make_unique<WatchedCapture>(another_inner(), watch_); }

 private:
  std::shared_ptr<LaunchWatch> watch_;
};

}  // namespace

std::shared_ptr<LaunchWatch> watch_launches(c10::Device device, std::function<std::chrono::milliseconds()> timeout,
                                            std::function<void()> on_late) {
  return std::make_shared<LaunchWatch>(device, std::move(timeout), std::move(on_late));
}

std::unique_ptr<GraphCapture> make_watched_capture(std::unique_ptr<GraphCapture> inner,
                                                   std::shared_ptr<LaunchWatch> watch) {
  return std::make_unique<WatchedCapture>(std::move(inner), std::move(watch));
}

}  // namespace fulgur::detail
