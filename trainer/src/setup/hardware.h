#pragma once

#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <memory>

#include "fulgur/core/device/cpu_matmul.h"
#include "fulgur/core/system/spin_limit.h"
#include "run/run_state.h"
#include "setup/devices.h"

namespace fulgur::detail {

/// The hardware that a run computes on.
struct Hardware {
  ChosenDevices devices;
  int64_t threads = 1;
  CpuMatmul matmul = CpuMatmul::mkl;                      ///< decided
  std::unique_ptr<CpuMatmulScope> matmul_scope = {};      ///< until the end of the run
  std::unique_ptr<SpinLimit> spin_limit = {};             ///< likewise, if the CPU computes with several threads
  std::unique_ptr<c10::DeviceGuard> current_device = {};  ///< the strategy's, until the end of the run
};

/// Decides threads and devices, configures the strategy of `run`, and seeds this rank.
Hardware choose_hardware(RunState& run);

/// Decides, once the model and the loaders of `run` exist, how the CPU computes: the number of threads and the library
/// that multiplies matrices. `resumed`: the state of the checkpoint that a fit resumes, whose decisions apply to what
/// is `auto` now; nullptr if there is none.
void choose_cpu_work(RunState& run, const StateTree* resumed, Hardware& hardware);

}  // namespace fulgur::detail
