#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

constexpr int64_t kMostVirtualDevices = 64;

/// Creates `count` virtual devices, `virtual:0` to `virtual:count-1`: LibTorch sees them as devices. Each has its own
/// generator and a counting allocator, and runs one operation at a time with the CPU's kernels in the process's memory.
/// Code for several GPUs can therefore be run and inspected without a GPU. They are the accelerator `virtual`, which
/// has eight devices by default.
///
/// They are meant for tests. Do not use them in a process that also computes on GPUs, because LibTorch would then no
/// longer regard GPUs as its accelerator. Later calls must not request more than the first. Throws a ConfigError if the
/// number is not 1 to 64 or is above that of the first call, or if another backend occupies LibTorch's only slot for
/// out-of-tree backends (PrivateUse1).
FULGUR_API void enable_virtual_devices(int64_t count);

/// The number of virtual devices; 0 before `enable_virtual_devices`.
FULGUR_API int64_t virtual_device_count();
FULGUR_API at::Device virtual_device(int64_t index);

/// Limits the bytes that tensors hold on each virtual device; 0: no limit. An allocation beyond the limit throws
/// c10::OutOfMemoryError, as on a GPU. The environment variable FULGUR_VIRTUAL_MEMORY sets the limit when the devices
/// are created. Call it on any thread; it applies to the allocations that follow. Throws a ConfigError for a negative
/// number.
FULGUR_API void set_virtual_device_memory(int64_t bytes);

/// The copies from one device to another; the CPU counts as a device.
struct FULGUR_API DeviceCopies {
  at::Device from = at::kCPU, to = at::kCPU;
  int64_t copies = 0;
  int64_t bytes = 0;
};

/// All copies that involved a virtual device since `reset_device_copies`, or the start, on any thread. A value read
/// with `.item()` is a copy to the CPU.
FULGUR_API std::vector<DeviceCopies> device_copies();
/// Bytes between virtual devices, without those from and to the CPU.
FULGUR_API int64_t bytes_between_virtual_devices();
FULGUR_API void reset_device_copies();

}  // namespace fulgur
