#include "sweep/trial_process.h"

#include <algorithm>

#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/child_process.h"

namespace fulgur::cli {
namespace {

std::vector<std::string> devices_in(const std::string& list) {
  std::vector<std::string> devices;
  for (const std::string& part : split_text(list, ',')) {
    const size_t begin = part.find_first_not_of(' '), end = part.find_last_not_of(' ');
    if (begin != std::string::npos) devices.push_back(part.substr(begin, end - begin + 1));
  }
  return devices;
}

// Without CUDA, which would take memory of each GPU.
std::vector<std::string> devices_of_machine() {
  std::vector<std::string> devices;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/driver/nvidia/gpus", error), end; !error && entry != end;
       entry.increment(error))
    devices.push_back(cat(devices.size()));
  return devices;
}

std::vector<std::string> known_devices(const SweepArguments& arguments, const Environment& environment) {
  if (arguments.device_list) return devices_in(*arguments.device_list);
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  return visible != environment.end() ? devices_in(visible->second) : devices_of_machine();
}

}  // namespace

std::vector<std::string> arguments_of_trial(const CommandLine& command, const history::SweepPlan& plan,
                                            const history::SweepTrial& trial, const std::filesystem::path& sweep_folder,
                                            std::optional<int64_t> rung) {
  std::vector<std::string> arguments{"fit", "--resume"};
  for (const auto& file : command.sources.files) arguments.push_back(cat("--config=", file));
  for (const auto& plugin : command.sources.plugins) arguments.push_back(cat("--plugin=", plugin));
  const auto set = [&](const std::string& key, const std::string& value) {
    arguments.push_back(cat("--", key, "=", value));
  };
  for (const auto& [key, value] : command.sources.overrides) set(key, value);
  for (const auto& [key, value] : trial.overrides) set(key, value);
  set("trainer.default_root_dir", (sweep_folder / history::trial_folder(trial.index)).string());
  // Also without a rung: the config may have a stop_after, at which a trial would end unfinished.
  set("trainer.stop_after", rung ? cat(*rung, plan.spec.halving->min_epochs ? "ep" : "st") : std::string("null"));
  return arguments;
}

TrialSlots slots_of(const SweepArguments& arguments, const Environment& environment) {
  TrialSlots slots{.jobs = arguments.jobs.value_or(1), .devices = {}, .threads = 1};
  const auto share = [&] { return std::max<int64_t>(1, usable_cpus() / slots.jobs); };
  slots.threads = share();
  if (!arguments.devices_per_trial && !arguments.device_list) return slots;
  const std::vector<std::string> devices = known_devices(arguments, environment);
  const int64_t each = arguments.devices_per_trial.value_or(1);
  const int64_t possible = static_cast<int64_t>(devices.size()) / each;
  slots.jobs = arguments.jobs.value_or(std::max<int64_t>(possible, 1));
  if (slots.jobs > possible)
    throw ConfigError(cat("[cli.sweep] each running trial has its own devices; ", counted(slots.jobs, "job"), " with ",
                          counted(each, "device"), " need ", slots.jobs * each, ", and there ",
                          devices.size() == 1 ? "is " : "are ", devices.size(),
                          ". Lower --jobs or --devices_per_trial, or name the devices with --device_list."));
  slots.threads = share();
  for (int64_t job = 0; job < slots.jobs; ++job) {
    const auto first = devices.begin() + job * each;
    slots.devices.push_back(join({first, first + each}, ","));
  }
  return slots;
}

Environment environment_of_slot(const TrialSlots& slots, size_t slot, Environment environment) {
  // A sweep may be started by a rank's script; its trials belong to no group.
  for (const char* name : {"FULGUR_LAUNCHER", "FULGUR_LAUNCHER_SHOWS", "FULGUR_RESTARTS"}) environment.erase(name);
  if (!slots.devices.empty()) environment["CUDA_VISIBLE_DEVICES"] = slots.devices[slot];
  std::string& threads = environment["OMP_NUM_THREADS"];
  if (!threads.empty()) return environment;
  threads = cat(slots.threads);
  environment[detail::kDivideThreads] = "1";
  return environment;
}

}  // namespace fulgur::cli
