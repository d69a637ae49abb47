#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace fulgur::detail {

/// Points in the work of a device, taken without synchronizing: on the CPU the clock, elsewhere an event on the current
/// stream, through c10's interface for any device.
class DeviceClock {
 public:
  struct Moment {
    std::chrono::steady_clock::time_point host;
    std::shared_ptr<c10::Event> event;  ///< null on the CPU
  };

  explicit DeviceClock(at::Device device) : device_(device) {}
  Moment now() const;
  /// Seconds between two points as reached by the device. Waits if it has not reached them.
  double seconds(const Moment& from, const Moment& to) const;
  /// The same as reached by the host.
  static double host_seconds(const Moment& from, const Moment& to) {
    return std::chrono::duration<double>(to.host - from.host).count();
  }

 private:
  at::Device device_;
};

}  // namespace fulgur::detail
