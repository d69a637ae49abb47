#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "fulgur/core/export.h"

namespace fulgur {

/// Counters of a device's caching allocator, in bytes, since `reset_peak_memory` or the start of the process.
struct FULGUR_API DeviceMemory {
  int64_t allocated = 0;  ///< bytes that tensors hold
  int64_t peak_allocated = 0;
  int64_t reserved = 0;  ///< bytes reserved from the device, including the cache
  int64_t peak_reserved = 0;
  int64_t alloc_retries = 0;  ///< number of cudaMalloc retries after freeing the cache
  int64_t ooms = 0;           ///< number of out-of-memory errors
};

/// The counters of the device's allocator, read on the host without synchronizing; nullopt for the CPU, and if the
/// device has no caching allocator or it is not initialized.
FULGUR_API std::optional<DeviceMemory> device_memory(const at::Device& device);

/// Bytes of the device that no process has reserved; nullopt whenever `device_memory` is. Asks the driver.
FULGUR_API std::optional<int64_t> free_device_memory(const at::Device& device);

/// Returns the memory that the device's allocator has cached and no tensor uses, so that the next allocations are not
/// hindered by its fragments; has no effect if the device has no such allocator. Waits for the device.
FULGUR_API void release_cached_memory(const at::Device& device);

/// CPU time and memory of this process, from the kernel.
struct FULGUR_API ProcessUsage {
  double cpu_seconds = 0;     ///< of all its threads, user and system
  int64_t resident = 0;       ///< bytes
  int64_t peak_resident = 0;  ///< bytes, since `reset_peak_memory` or the start
  int64_t minor_faults = 0;   ///< page faults without disk reads, since the start
};
FULGUR_API ProcessUsage process_usage();

struct FULGUR_API SystemMemory {
  int64_t total = 0;      ///< bytes
  int64_t available = 0;  ///< bytes available to programs without swapping
};
FULGUR_API SystemMemory system_memory();

/// Restarts peak counting: of the process (if the kernel allows it, Linux 4.0 and later), and of `device`.
FULGUR_API void reset_peak_memory(const at::Device& device);

}  // namespace fulgur
