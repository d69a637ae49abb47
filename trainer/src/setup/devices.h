#pragma once

#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/device/accelerator.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur::detail {

struct ChosenDevices {
  Accelerator* accelerator = nullptr;
  std::vector<at::Device> devices;
  bool is_auto = false;   ///< the number was not given
  std::string note = {};  ///< printed next to the devices
  /// `1 × cuda (NVIDIA H200)`.
  std::string describe() const;
};

/// Decides accelerator and devices of this node. If each device has its own process, the CPU counts as often as
/// requested; unless one device is needed, `auto` means all devices of an accelerator. Throws a ConfigError that says
/// what this machine has.
ChosenDevices choose_devices(const TrainerOptions& options, DeviceUse use);
/// `accelerator: auto` on a machine without a usable GPU: what to print next to the CPU, usually nothing. If the driver
/// has a GPU that this program cannot use (`remedy`), a build for the CPU warns; any other build throws.
std::string auto_without_cuda(DeviceUse use, const std::string& reason, const std::string& remedy, bool for_cpu);
/// As required by the strategy in the options.
ChosenDevices choose_devices(const TrainerOptions& options);

/// From now until the guard is destroyed, `at::kCUDA` without an index means this device, as in Lightning. nullptr for
/// the CPU, and for kinds of devices that have no current one (a strategy's stand-ins).
std::unique_ptr<c10::DeviceGuard> make_current(const at::Device& device);

/// `config` with each `auto` replaced by the decided value. `threads`: nullopt if only a run can decide.
ConfigNode resolve_config(ConfigNode config, const ChosenDevices& devices, std::optional<int64_t> threads,
                          CpuMatmul matmul, std::optional<uint64_t> seed);

}  // namespace fulgur::detail
