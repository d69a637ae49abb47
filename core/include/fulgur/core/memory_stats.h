#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "fulgur/core/export.h"

namespace fulgur {

/// Counters of a device's caching allocator; bytes since `reset_peak_memory`, or the start of the process.
struct FULGUR_API DeviceMemory {
  int64_t allocated = 0;  ///< bytes that tensors hold
  int64_t peak_allocated = 0;
  int64_t reserved = 0;  ///< bytes taken from the device, those kept for the next tensors among them
  int64_t peak_reserved = 0;
  int64_t alloc_retries = 0;  ///< times that kept memory had to be given back to find room
  int64_t ooms = 0;           ///< times that this did not help
};

/// What the allocator of the device counts, read on the host without waiting for the device; nothing for the CPU, and
/// where the device has no caching allocator or it has not begun.
FULGUR_API std::optional<DeviceMemory> device_memory(const at::Device& device);

/// Memory and time of this process, as the kernel counts them.
struct FULGUR_API ProcessUsage {
  double cpu_seconds = 0;     ///< of all its threads, user and system
  int64_t resident = 0;       ///< bytes
  int64_t peak_resident = 0;  ///< bytes, since `reset_peak_memory` or the start
  int64_t minor_faults = 0;   ///< pages that came without reading a disk, since the start
};
FULGUR_API ProcessUsage process_usage();

/// Memory of the machine.
struct FULGUR_API SystemMemory {
  int64_t total = 0;      ///< bytes
  int64_t available = 0;  ///< bytes that programs can take without swapping
};
FULGUR_API SystemMemory system_memory();

/// From now on, peaks are those of what comes: of the process (where the kernel allows it, Linux 4.0 on), and of
/// `device`.
FULGUR_API void reset_peak_memory(const at::Device& device);

}  // namespace fulgur
