#include "fulgur/callbacks/device_stats_monitor.h"

#include <algorithm>

#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

const std::vector<std::string> kKeys{"allocated_bytes",     "peak_allocated_bytes", "reserved_bytes",
                                     "peak_reserved_bytes", "alloc_retries",        "ooms",
                                     "cpu_percent",         "resident_bytes",       "memory_percent"};

}  // namespace

void DeviceStatsMonitor::Options::fields(Fields& f) {
  f(cpu_stats, "cpu_stats", "Whether to log the CPU load and memory of the process; null: if it computes on the CPU.");
  f(filter_keys, "filter_keys", "Log only these keys, given without their prefix; empty: all.").one_of(kKeys);
}

DeviceStatsMonitor::DeviceStatsMonitor(Options options) : options_(std::move(options)) {
  for (const std::string& key : options_.filter_keys)
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      throw ConfigError(cat("[callbacks.DeviceStatsMonitor] filter_keys must name keys of this callback; got '",
                            escape_controls(key), "'. The keys are: ", join(kKeys), "."));
}

void DeviceStatsMonitor::on_train_start(RunContext& run) {
  of_device_ = !run.device().is_cpu();
  of_cpu_ = options_.cpu_stats.value_or(!of_device_);
  read_at_ = std::chrono::steady_clock::now();
  cpu_seconds_ = process_usage().cpu_seconds;
}

void DeviceStatsMonitor::log(RunContext& run, const char* key, double value, const std::string& of_device) const {
  const auto& wanted = options_.filter_keys;
  if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), key) == wanted.end()) return;
  run.log(cat("DeviceStatsMonitor.on_train_batch_end/", of_device, key), value, {.reduce_fx = Reduce::last});
}

void DeviceStatsMonitor::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  // Steps that the filter selects may have no row: the values are then in the next one.
  if (!filter().selects_steps() && !run.meters().is_logging_step()) return;
  const std::vector<at::Device> devices = run.devices();
  for (const at::Device& device : devices) {
    const auto memory = of_device_ ? device_memory(device) : std::nullopt;
    if (!memory) continue;
    // With several devices each name is prefixed with the device.
    const std::string of = devices.size() > 1 ? cat(device.str(), "/") : std::string();
    log(run, "allocated_bytes", static_cast<double>(memory->allocated), of);
    log(run, "peak_allocated_bytes", static_cast<double>(memory->peak_allocated), of);
    log(run, "reserved_bytes", static_cast<double>(memory->reserved), of);
    log(run, "peak_reserved_bytes", static_cast<double>(memory->peak_reserved), of);
    log(run, "alloc_retries", static_cast<double>(memory->alloc_retries), of);
    log(run, "ooms", static_cast<double>(memory->ooms), of);
  }
  if (!of_cpu_) return;
  const ProcessUsage usage = process_usage();
  const SystemMemory machine = system_memory();
  const auto now = std::chrono::steady_clock::now();
  const double passed = std::chrono::duration<double>(now - std::exchange(read_at_, now)).count();
  if (passed > 0) log(run, "cpu_percent", 100 * (usage.cpu_seconds - cpu_seconds_) / passed);
  cpu_seconds_ = usage.cpu_seconds;
  log(run, "resident_bytes", static_cast<double>(usage.resident));
  if (machine.total > 0)
    log(run, "memory_percent", 100 * (1 - static_cast<double>(machine.available) / static_cast<double>(machine.total)));
}

[[maybe_unused]] static const bool registered_device_stats_monitor = Registry<Callback>::add<DeviceStatsMonitor>(
    "DeviceStatsMonitor", "Logs the memory of the device, and the CPU load and memory of the process.");

}  // namespace fulgur
