#pragma once

#include <cstdint>
#include <optional>

namespace fulgur::test {

/// Since the start of the process.
struct DeviceCounts {
  int64_t launches = 0;  ///< kernels, those inside libraries among them
  int64_t graph_launches = 0;
  int64_t copies_to_device = 0;  ///< from the host
  int64_t copies_on_device = 0;  ///< within one device
  int64_t copies_between_devices = 0;
  int64_t copies_to_host = 0;
  int64_t waits = 0;         ///< of the host
  int64_t stream_waits = 0;  ///< of streams, for events
  int64_t pinned_allocations = 0;
};

/// What this process has done on simulated GPUs; nothing on real ones, or without any.
std::optional<DeviceCounts> device_counts();

}  // namespace fulgur::test
