#pragma once

#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <memory>

#include "run/run_state.h"
#include "setup/devices.h"

namespace fulgur::detail {

/// The hardware that a run computes on.
struct Hardware {
  ChosenDevices devices;
  int64_t threads = 1;
  std::unique_ptr<c10::DeviceGuard> current_device = {};  ///< the strategy's, until the end of the run
};

/// Decides threads and devices, configures the strategy of `run`, and seeds this rank.
Hardware choose_hardware(RunState& run);

}  // namespace fulgur::detail
