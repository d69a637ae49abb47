#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

constexpr int64_t kMostVirtualDevices = 64;

/// Creates `count` virtual devices, `virtual:0` to `virtual:count-1`: devices as seen by LibTorch, each with a
/// generator, a counting allocator and one operation at a time, which compute with the CPU's kernels in the process's
/// memory. So code for several GPUs can be run, and inspected, without any. They are the accelerator `virtual`, which
/// has eight devices by default.
///
/// For trials and tests: not in a process that computes on GPUs too, which LibTorch would then not take for its
/// accelerator. Later calls may ask for no more than the first. Throws a ConfigError if the number is not 1 to 64 or
/// above the first, and where another backend has taken the place (LibTorch has one for all that it does not know).
FULGUR_API void enable_virtual_devices(int64_t count);

/// 0 before `enable_virtual_devices`.
FULGUR_API int64_t virtual_device_count();
FULGUR_API at::Device virtual_device(int64_t index);

/// What was copied from one device to another; the CPU is one of them.
struct FULGUR_API DeviceCopies {
  at::Device from = at::kCPU, to = at::kCPU;
  int64_t copies = 0;
  int64_t bytes = 0;
};

/// All copies that involved a virtual device since `reset_device_copies`, or the start; from any thread. A value read
/// with `.item()` is a copy to the CPU.
FULGUR_API std::vector<DeviceCopies> device_copies();
/// Bytes between virtual devices, without those from and to the CPU.
FULGUR_API int64_t bytes_between_virtual_devices();
FULGUR_API void reset_device_copies();

}  // namespace fulgur
