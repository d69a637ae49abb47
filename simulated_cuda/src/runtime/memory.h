#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace simulated_cuda {

struct Allocation {
  size_t bytes = 0, mapped = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
  bool registered = false;  ///< the program's own memory, registered with cudaHostRegister
};

/// The allocation that contains the address, with its start in `*start`; nullptr if the runtime has not made it.
const Allocation* find_allocation(const void* address, const void** start = nullptr);
/// Device memory, filled with the poison byte.
void* new_device_memory(size_t bytes, int device);

}  // namespace simulated_cuda
