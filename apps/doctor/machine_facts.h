#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fulgur::cli {

using Facts = std::vector<std::pair<std::string, std::string>>;

/// Versions of Fulgur, LibTorch, the compiler, the system, the driver and CUDA's libraries.
Facts version_facts();
/// CPUs, memory and GPUs. Loads CUDA if the driver has a device.
Facts hardware_facts();
/// Variables of the environment that change how a run computes. Of options of the config (`FULGUR_…__…`), which may be
/// secrets, only the names.
Facts variable_facts();

/// Version of the kernel's NVIDIA driver; empty without one.
std::string driver_version();
/// Version of the NCCL that is loaded; empty if none is.
std::string nccl_version();
/// `15.5 GiB`.
std::string gibibytes(int64_t bytes);

}  // namespace fulgur::cli
