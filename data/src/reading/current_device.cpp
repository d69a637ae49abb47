#include "reading/current_device.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fulgur {

std::optional<at::Device> current_device() {
  const auto kind = at::getAccelerator();
  if (!kind || !c10::impl::hasDeviceGuardImpl(*kind)) return std::nullopt;
  const at::Device device = c10::impl::VirtualGuardImpl(*kind).getDevice();
  return device.index() > 0 ? std::optional(device) : std::nullopt;
}

}  // namespace fulgur
