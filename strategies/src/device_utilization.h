#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <c10/core/Device.h>

namespace fulgur::detail {

/// The fraction of the time since construction that devices compute: as counted by their accelerator, or else sampled
/// by a thread that checks every two milliseconds whether the device's stream has work.
class DeviceUtilization {
 public:
  explicit DeviceUtilization(std::vector<at::Device> devices);
  ~DeviceUtilization();
  DeviceUtilization(const DeviceUtilization&) = delete;
  DeviceUtilization& operator=(const DeviceUtilization&) = delete;

  /// 0 to 1, one per device.
  std::vector<double> shares() const;
  double seconds() const;

 private:
  void sample();

  std::vector<at::Device> devices_;
  std::chrono::steady_clock::time_point began_;
  std::vector<double> counted_;  // at the start; empty if they are sampled
  std::vector<std::atomic<int64_t>> seen_busy_;
  std::atomic<int64_t> looks_ = 0;
  std::atomic<bool> ends_ = false;
  std::thread sampler_;
};

}  // namespace fulgur::detail
