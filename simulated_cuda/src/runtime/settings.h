#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simulated_cuda {

/// The settings, read once from the environment; docs/simulated_gpu.md lists the variables.
struct Settings {
  std::vector<int> devices;  ///< the machine-wide index of each device
  size_t device_bytes = 0;
  int poison = 0xFF;      ///< byte that fills new device memory; -1: memory is not filled
  uint64_t schedule = 0;  ///< as in `simulated_cuda_set_schedule`
  bool print_counts = false;
  int log = 1;  ///< 0: nothing; 1: errors and lints; 2: also waits of the host; 3: also calls of stand-ins
  bool backtrace = false;
  bool operators = true;  ///< results are computed too
  // Negative controls: faults that a test must detect.
  bool break_wait = false;   ///< a stream's wait for an event does nothing
  bool break_query = false;  ///< a query always reports an event as done
  bool break_sync = false;   ///< waits of the host return immediately
};

const Settings& settings();

}  // namespace simulated_cuda
