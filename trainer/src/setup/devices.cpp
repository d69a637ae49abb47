#include "setup/devices.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/virtual_devices/virtual_devices.h"

namespace fulgur::detail {

ConfigNode resolve_config(ConfigNode config, const ChosenDevices& devices, std::optional<int64_t> threads,
                          CpuMatmul matmul, std::optional<uint64_t> seed) {
  ConfigNode& trainer = config.get_or_add("trainer");
  trainer.set("accelerator", ConfigNode::string(devices.accelerator->name()));
  // Indices stay as given; a number becomes the resolved number.
  const ConfigNode* written = trainer.find("devices");
  if (!written || !written->is_list())
    trainer.set("devices", ConfigNode::integer(static_cast<int64_t>(devices.devices.size())));
  if (threads) trainer.set("num_threads", ConfigNode::integer(*threads));
  trainer.set("cpu_matmul", ConfigNode::string(std::string(enum_text(matmul))));
  if (seed) config.set("seed_everything", ConfigNode::scalar(std::to_string(*seed)));
  return config;
}

std::string ChosenDevices::describe() const {
  return cat(static_cast<int64_t>(devices.size()), " × ", accelerator->name(),
             accelerator->name() == "cpu" ? "" : cat(" (", accelerator->device_name(devices.front().index()), ")"),
             note);
}

namespace {

// There are eight, or as many as requested.
int64_t virtual_devices_for(const DeviceChoice& devices) {
  int64_t count = std::max<int64_t>(8, devices.count.value_or(0));
  for (const int64_t index : devices.indices) count = std::max(count, index + 1);
  return count;
}

// If one rank has no accelerator, ranks cannot work together (F53); for a single process it is a config error.
[[noreturn]] void refuse(DeviceUse use, const std::string& message) {
  if (use == DeviceUse::one_each) throw DistributedError(message);
  throw ConfigError(message);
}

// `devices` requests a device that does not exist, by number or by index.
[[noreturn]] void refuse_devices(const Accelerator& accelerator, const std::string& wanted) {
  const int64_t there = accelerator.device_count();
  std::vector<std::string> names;
  for (int64_t i = 0; i < there; ++i) names.push_back(cat(i, " (", accelerator.device_name(i), ")"));
  const std::string remedy =
      accelerator.name() == "cpu"
          ? "Set trainer.devices: 1. For several processes on the CPU, set trainer.strategy: "
            "ddp; to try several devices without GPUs, set trainer.accelerator: virtual."
          : cat("Set trainer.devices to ",
                there == 1 ? "1 or [0]" : cat("a number up to ", there, " or to a list of indices up to ", there - 1),
                ", or to -1 for all. CUDA_VISIBLE_DEVICES may hide some.");
  throw ConfigError(cat("[trainer.devices] ", wanted, "; this machine has ",
                        counted(there, cat(accelerator.name(), " device")), ": ", join(names), ". ", remedy));
}

}  // namespace

std::string auto_without_cuda(DeviceUse use, const std::string& reason, const std::string& remedy, bool for_cpu) {
  if (remedy.empty()) return {};
  const std::string what =
      cat("this machine has an NVIDIA driver, but the program cannot use its GPUs: ", reason, ". ");
  if (!for_cpu)
    refuse(use, cat("[trainer.accelerator] 'auto' would use a GPU; ", what,
                    "Set trainer.accelerator: cpu to train on the CPU. ", remedy, "."));
  log::warn("trainer.built_for_cpu",
            cat("training on the CPU; ", what, "Fulgur was built with FULGUR_LIBTORCH=cpu. ", remedy));
  return " (built for the CPU: GPUs are not used)";
}

ChosenDevices choose_devices(const TrainerOptions& options, DeviceUse use) {
  ChosenDevices chosen;
  const std::string wanted = options.accelerator == "gpu" ? "cuda" : options.accelerator;
  if (wanted == "auto") {
    chosen.accelerator = find_accelerator("cuda");
    if (!chosen.accelerator) {
      chosen.note = auto_without_cuda(use, why_no_cuda(), how_to_get_cuda(), built_for_cpu());
      chosen.accelerator = find_accelerator("cpu");
    }
  } else {
    if (wanted == "virtual") enable_virtual_devices(virtual_devices_for(options.devices));
    chosen.accelerator = find_accelerator(wanted);
    if (!chosen.accelerator) {
      const std::string remedy = how_to_get_cuda();
      refuse(use, cat("[trainer.accelerator] '", options.accelerator, "' is not available: 0 GPUs are visible; ",
                      why_no_cuda(), ". ",
                      remedy.empty() ? "Use trainer.accelerator: cpu or auto"
                                     : cat("Use trainer.accelerator: cpu. ", remedy),
                      "."));
    }
  }
  chosen.is_auto = options.devices.is_auto();
  const int64_t there = chosen.accelerator->device_count();
  const bool cpu = chosen.accelerator->name() == "cpu";
  if (use == DeviceUse::one_each && cpu && options.devices.count.value_or(1) > 0 && options.devices.indices.empty()) {
    chosen.devices.assign(static_cast<size_t>(options.devices.count.value_or(1)), chosen.accelerator->device(0));
    return chosen;
  }
  std::vector<int64_t> indices = options.devices.indices;
  if (indices.empty()) {
    int64_t count = options.devices.count.value_or(use == DeviceUse::one ? 1 : -1);
    if (count == -1) count = there;
    if (count > there) refuse_devices(*chosen.accelerator, cat(count, " devices were requested"));
    for (int64_t i = 0; i < count; ++i) indices.push_back(i);
  }
  for (const int64_t index : indices) {
    if (index >= there) refuse_devices(*chosen.accelerator, cat("there is no device ", index));
    chosen.devices.push_back(chosen.accelerator->device(index));
  }
  return chosen;
}

ChosenDevices choose_devices(const TrainerOptions& options) {
  return choose_devices(options, options.strategy.create()->device_use());
}

std::unique_ptr<c10::DeviceGuard> make_current(const at::Device& device) {
  if (device.is_cpu() || !c10::impl::hasDeviceGuardImpl(device.type())) return nullptr;
  return std::make_unique<c10::DeviceGuard>(device);
}

}  // namespace fulgur::detail
