#include "support/device_counts.h"

#ifdef FULGUR_WITH_SIMULATED_CUDA
#include <dlfcn.h>

#include "fulgur/simulated_cuda/simulated_cuda.h"
#endif

namespace fulgur::test {

std::optional<DeviceCounts> device_counts() {
#ifdef FULGUR_WITH_SIMULATED_CUDA
  const auto count = reinterpret_cast<decltype(&simulated_cuda_counts)>(dlsym(RTLD_DEFAULT, "simulated_cuda_counts"));
  const auto waits =
      reinterpret_cast<decltype(&simulated_cuda_host_waits)>(dlsym(RTLD_DEFAULT, "simulated_cuda_host_waits"));
  if (count == nullptr || waits == nullptr) return std::nullopt;
  SimulatedCudaCounts counts{};
  count(&counts);
  return DeviceCounts{.launches = static_cast<int64_t>(counts.launches),
                      .graph_launches = static_cast<int64_t>(counts.graph_launches),
                      .copies_to_device = static_cast<int64_t>(counts.copies_to_device),
                      .copies_on_device = static_cast<int64_t>(counts.copies_on_device),
                      .copies_between_devices = static_cast<int64_t>(counts.copies_between_devices),
                      .copies_to_host = static_cast<int64_t>(counts.copies_to_host),
                      .waits = static_cast<int64_t>(waits()),
                      .stream_waits = static_cast<int64_t>(counts.stream_waits),
                      .pinned_allocations = static_cast<int64_t>(counts.host_mallocs)};
#else
  return std::nullopt;
#endif
}

}  // namespace fulgur::test
