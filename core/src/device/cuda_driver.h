#pragma once

#include <string>

namespace fulgur::detail {

/// What the NVIDIA driver of this machine offers, queried without CUDA's headers or libraries.
struct CudaDriver {
  enum class State {
    none,       ///< no driver: nothing to compute on
    no_device,  ///< the driver shows this process no device
    broken,     ///< the driver cannot be used
    ready       ///< the driver has at least one device
  };
  State state = State::none;
  std::string reason;  ///< why it is not ready
};

/// Queries the driver. Its library also works in containers and under WSL2, which have no /proc/driver/nvidia.
CudaDriver find_cuda_driver();

}  // namespace fulgur::detail
