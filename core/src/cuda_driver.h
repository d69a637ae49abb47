#pragma once

#include <string>

namespace fulgur::detail {

/// What the NVIDIA driver of this machine offers, asked without CUDA's headers or libraries.
struct CudaDriver {
  enum class State {
    none,       ///< no driver: nothing to compute on
    no_device,  ///< a driver that shows this process no device
    broken,     ///< a driver that cannot be used
    ready       ///< a driver with a device at least
  };
  State state = State::none;
  std::string reason;  ///< why it is not ready
};

/// Asks the driver. Its library answers in containers and under WSL2 too, which have no /proc/driver/nvidia.
CudaDriver find_cuda_driver();

}  // namespace fulgur::detail
