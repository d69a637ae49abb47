#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace fulgur::detail {

/// Moments in the work of a device, taken without waiting for it: on the CPU the clock, elsewhere an event on the
/// current stream, through c10's interface for any device.
class DeviceClock {
 public:
  struct Moment {
    std::chrono::steady_clock::time_point host;
    std::shared_ptr<c10::Event> event;  ///< none on the CPU
  };

  explicit DeviceClock(at::Device device) : device_(device) {}
  Moment now() const;
  /// Seconds between two moments as the device came to them. Waits where it has not.
  double seconds(const Moment& from, const Moment& to) const;
  /// The same as the host came to them.
  static double host_seconds(const Moment& from, const Moment& to) {
    return std::chrono::duration<double>(to.host - from.host).count();
  }

 private:
  at::Device device_;
};

}  // namespace fulgur::detail
