#include "gpu.h"

#include <cstdlib>
#include <cstring>

namespace fulgur::simulated_nccl {

int gpu_of(int device) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; list && i < device; ++i) {
    list = std::strchr(list, ',');
    if (list) ++list;
  }
  return list && *list >= '0' && *list <= '9' ? std::atoi(list) : device;
}

}  // namespace fulgur::simulated_nccl
