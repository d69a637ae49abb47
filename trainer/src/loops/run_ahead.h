#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstdint>
#include <optional>

namespace fulgur::detail {

/// Keeps the host at most `kSteps` training steps ahead of a GPU. Otherwise a host that is faster than the device fills
/// the driver's queue with steps whose batches all stay in memory, and a signal or a checkpoint waits for the whole
/// queue. No effect on other devices.
class RunAhead {
 public:
  static constexpr int64_t kSteps = 4;
  explicit RunAhead(at::Device device) : device_(device) {}
  /// Call before launching a step: waits until the device has finished the step `kSteps` before it.
  void begin_step() {
    if (!device_.is_cuda() || steps_ < kSteps) return;
    const c10::Event& done = *done_[static_cast<size_t>(steps_ % kSteps)];
    // A device that keeps up causes no wait.
    if (!done.query()) done.synchronize();
  }
  /// Call after the work of a step was launched.
  void end_step() {
    if (!device_.is_cuda()) return;
    std::optional<c10::Event>& done = done_[static_cast<size_t>(steps_++ % kSteps)];
    if (!done) done.emplace(device_.type());
    done->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

 private:
  at::Device device_;
  std::array<std::optional<c10::Event>, kSteps> done_;
  int64_t steps_ = 0;
};

}  // namespace fulgur::detail
