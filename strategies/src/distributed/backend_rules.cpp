#include "distributed/backend_rules.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"

namespace fulgur::detail {

std::string choose_backend(const std::string& wanted, const std::string& device_type) {
  const bool cpu = device_type == "cpu";
  if (wanted == "auto") return cpu ? "gloo" : "nccl";
  if (wanted == "mpi")
    throw ConfigError(
        "[strategies.ddp] process_group_backend: mpi is not in LibTorch's wheel, which was built without MPI. Use gloo "
        "or nccl; mpirun can still start the processes.");
  if (wanted == "nccl" && cpu)
    throw ConfigError(
        "[strategies.ddp] process_group_backend: nccl exchanges tensors on GPUs only, and the run is on the CPU. Use "
        "gloo (or auto).");
  if (wanted == "gloo" && !cpu)
    log::warn("strategies.gloo_on_cuda",
              "process_group_backend: gloo copies gradients through the host; nccl (or auto) is faster for GPUs");
  return wanted;
}

}  // namespace fulgur::detail
