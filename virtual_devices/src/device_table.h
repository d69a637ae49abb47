#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "fulgur/virtual_devices/virtual_devices.h"

namespace fulgur::virtual_devices {

/// The simulation's state of one device.
struct DeviceEntry {
  std::recursive_mutex mutex;        ///< held by the operation running on the device
  std::atomic<int64_t> busy_ns = 0;  ///< written under `mutex`
  int depth = 0;                     ///< number of nested operations
  std::atomic<int64_t> allocated = 0, peak_allocated = 0;
  at::Generator generator;
};

/// All devices of the process.
class DeviceTable {
 public:
  static DeviceTable& instance();
  /// Never decreases.
  void set_count(int64_t count);
  int64_t count() const { return count_.load(std::memory_order_acquire); }
  DeviceEntry& operator[](int64_t index) { return entries_[static_cast<size_t>(index)]; }

  /// Bytes that tensors may hold on each device; 0: no limit.
  std::atomic<int64_t> memory_limit = 0;

  void count_copy(at::Device from, at::Device to, int64_t bytes);
  std::vector<DeviceCopies> copies() const;
  void reset_copies();

 private:
  static constexpr size_t kPlaces = static_cast<size_t>(kMostVirtualDevices) + 1;  // the last is the CPU's
  struct Copies {
    std::atomic<int64_t> copies = 0, bytes = 0;
  };
  std::atomic<int64_t> count_ = 0;
  std::array<DeviceEntry, static_cast<size_t>(kMostVirtualDevices)> entries_;
  std::array<std::array<Copies, kPlaces>, kPlaces> copies_;
};

/// Occupies the device during its lifetime: others wait, and the time counts as busy.
class AtWork {
 public:
  explicit AtWork(at::Device device)
      : entry_(DeviceTable::instance()[device.index()]),
        lock_(entry_.mutex),
        began_(entry_.depth++ == 0 ? Clock::now() : Clock::time_point()) {}
  ~AtWork() {
    if (--entry_.depth == 0)
      entry_.busy_ns.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count(),
                               std::memory_order_relaxed);
  }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  DeviceEntry& entry_;
  std::lock_guard<std::recursive_mutex> lock_;
  Clock::time_point began_;
};

}  // namespace fulgur::virtual_devices
