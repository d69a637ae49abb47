#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace fulgur::virtual_devices {

/// Memory of the CPU that is counted for the current device.
c10::DeviceAllocator& allocator();

/// Memory that a kernel of the CPU has made becomes memory of `device`.
c10::Storage take_storage(const c10::Storage& of_cpu, at::Device device);

}  // namespace fulgur::virtual_devices
