#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace fulgur::virtual_devices {

/// CPU memory that is counted for the current device.
c10::DeviceAllocator& allocator();

/// Turns memory allocated by a CPU kernel into memory of `device`.
c10::Storage take_storage(const c10::Storage& of_cpu, at::Device device);

}  // namespace fulgur::virtual_devices
