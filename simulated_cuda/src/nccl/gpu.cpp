#include "gpu.h"

#include <cuda_runtime_api.h>

namespace fulgur::simulated_nccl {

int gpu_of(int device) {
  int bus = 0;
  return cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device) == cudaSuccess ? bus : -1;
}

}  // namespace fulgur::simulated_nccl
