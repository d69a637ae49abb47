#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simulated_cuda {

/// From the environment, once; docs/simulated_gpu.md lists the variables.
struct Settings {
  std::vector<int> devices;  ///< the machine-wide index of each device
  size_t device_bytes = 0;
  int poison = 0xFF;      ///< byte that fresh device memory is filled with; -1: none
  uint64_t schedule = 0;  ///< as in `simulated_cuda_set_schedule`
  bool print_counts = false;
  int log = 1;  ///< 0 nothing, 1 errors and lints, 2 host waits too, 3 calls of stand-ins too
  bool backtrace = false;
  bool operators = true;  ///< the numbers too
  // Negative controls: what a correct program must not survive.
  bool break_wait = false;   ///< a stream's wait for an event does nothing
  bool break_query = false;  ///< an event is always said to be done
  bool break_sync = false;   ///< the host's waits return at once
};

const Settings& settings();

}  // namespace simulated_cuda
