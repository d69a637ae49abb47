#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace fulgur {

/// The device that `at::kCUDA` without an index means on this thread, to be set on its worker threads. Nullopt if it is
/// the first one, as on every new thread, or if LibTorch has no accelerator.
inline std::optional<at::Device> current_device() {
  const auto kind = at::getAccelerator();
  if (!kind || !c10::impl::hasDeviceGuardImpl(*kind)) return std::nullopt;
  const at::Device device = c10::impl::VirtualGuardImpl(*kind).getDevice();
  return device.index() > 0 ? std::optional(device) : std::nullopt;
}

}  // namespace fulgur
