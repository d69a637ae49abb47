#include "doctor/checks.h"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "doctor/machine_facts.h"
#include "failure.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/system/disk_speed.h"
#include "fulgur/core/system/process_limits.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/process_group.h"
#include "fulgur/trainer/trainer.h"

namespace fulgur::cli {
namespace {

using Level = Finding::Level;
constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr double kMebibyte = 1 << 20;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Several processes that are started for one run, each with its own device.
bool trains_in_several(const Config& config) {
  try {
    return config.trainer.strategy.create()->device_use() == DeviceUse::one_each;
  } catch (const std::exception&) {
    return false;  // `check_choices` reports it
  }
}

/// The name of a component, or the text of a value.
std::string chosen(const ConfigNode& trainer, const char* key) {
  const ConfigNode* node = trainer.find(key);
  if (node != nullptr && node->is_map()) node = node->find("class_path");
  if (node == nullptr) return {};
  if (node->is_list())
    return cat("[", join([&] {
                 std::vector<std::string> items;
                 for (const ConfigNode& item : node->items()) items.push_back(item.text());
                 return items;
               }()),
               "]");
  return node->text();
}

/// A group of one process that adds up a number: empty if it works, else why it does not.
std::string failure_of_backend(const char* backend, const at::Device& device, std::string& description) {
  try {
    constexpr double kTimeout = 20;
    const auto group = ProcessGroup::connect(
        {}, {.backend = backend, .device = device, .start_timeout_s = kTimeout, .timeout_s = kTimeout});
    const auto sum = group->collectives().all_reduce(at::ones({1}, device), ReduceOp::sum);
    const bool right = sum.item<double>() == 1;
    description = group->describe();
    group->shut_down();
    return right ? "" : "it adds up numbers wrongly";
  } catch (...) {
    return current_failure().message;
  }
}

std::string failure_of_device(const Accelerator& accelerator, int64_t index) {
  try {
    const auto ones = at::ones({64, 64}, accelerator.device(index));
    return ones.matmul(ones).sum().item<double>() == 64.0 * 64 * 64 ? "" : "it multiplies matrices wrongly";
  } catch (...) {
    return current_failure().message;
  }
}

/// The folder itself, or the nearest one above it that exists.
std::filesystem::path existing_folder(std::filesystem::path folder) {
  std::error_code error;
  folder = std::filesystem::absolute(folder.empty() ? "." : folder, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // `.`, or a slash at the end
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

}  // namespace

void check_cpus(const Config& config, Findings& findings) {
  for (const auto& [name, value] : hardware_facts())
    if (name.starts_with("CPU")) findings.push_back({name, Level::ok, value});
  const int64_t cpus = usable_cpus();
  const auto& wanted = config.trainer.num_threads.value;
  const char* const variable = std::getenv("OMP_NUM_THREADS");
  const int64_t threads = wanted ? *wanted : variable && std::atoll(variable) > 0 ? std::atoll(variable) : cpus;
  const char* const source = wanted ? "num_threads" : variable && std::atoll(variable) > 0 ? "OMP_NUM_THREADS" : "";
  if (threads > cpus)
    findings.push_back(
        {"threads", Level::warning,
         cat(threads, " threads (", source, ") share ", counted(cpus, "usable CPU"), " and wait for each other"),
         cat("Set trainer.num_threads: ", cpus, ", or give the process more CPUs.")});
  const auto limit = process_limits().cpus;
  if (const auto fit = limit ? std::max<int64_t>(1, static_cast<int64_t>(*limit)) : threads; fit < threads)
    findings.push_back({"threads", Level::warning,
                        cat(threads, " threads, but the control group gives CPU time for ", format_fixed(*limit, 2),
                            ": the threads are paused in each period"),
                        cat("Set trainer.num_threads: ", fit, ", or raise the limit of the container.")});
}

void check_memory(Findings& findings) {
  for (const auto& [name, value] : hardware_facts())
    if (name == "memory") findings.push_back({name, Level::ok, value});
  int64_t usable = system_memory().available;
  if (const auto limit = process_limits().memory_bytes) usable = std::min(usable, *limit);
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    usable = std::min(usable, static_cast<int64_t>(space.rlim_cur));
    findings.push_back({"memory", Level::warning,
                        cat("the address space is limited to ", gibibytes(static_cast<int64_t>(space.rlim_cur)),
                            " (ulimit -v), which also counts memory that is only reserved"),
                        "Remove the limit: ulimit -v unlimited. CUDA reserves more than any such limit."});
  }
  if (usable < kGibibyte)
    findings.push_back({"memory", Level::warning, cat("a run may use only ", gibibytes(usable)),
                        "End other programs, or raise the limit of the container or of the job."});
}

void check_gpus(Findings& findings) {
  const Accelerator* const cuda = find_accelerator("cuda");
  if (cuda == nullptr) {
    const std::string fix = how_to_get_cuda();
    if (fix.empty())
      findings.push_back({"cuda", Level::note, why_no_cuda()});
    else
      findings.push_back({"cuda", built_for_cpu() ? Level::warning : Level::problem, why_no_cuda(), fix + "."});
    return;
  }
  const std::string driver = driver_version();
  for (const auto& [name, value] : version_facts())
    if (name == "CUDA")
      findings.push_back({"cuda", Level::ok, cat(value, driver.empty() ? "" : cat(", driver ", driver))});
  for (int64_t i = 0; i < cuda->device_count(); ++i) {
    const std::string failure = failure_of_device(*cuda, i), name = cat("cuda:", i);
    if (!failure.empty()) {
      findings.push_back({name, Level::problem, cat(cuda->device_name(i), " fails: ", failure),
                          "Look at nvidia-smi and at the kernel's log (Xid errors), and choose other devices with "
                          "trainer.devices until it is repaired."});
      continue;
    }
    const auto free = free_device_memory(cuda->device(i));
    const bool is_full = free && *free < kGibibyte;
    findings.push_back({name, is_full ? Level::warning : Level::ok,
                        cat(cuda->device_name(i), free ? cat(", ", gibibytes(*free), " free") : ""),
                        is_full ? "Other programs hold its memory; nvidia-smi lists them." : ""});
  }
}

void check_backends(const Config& config, Findings& findings) {
  std::string description;
  const Level severity = trains_in_several(config) ? Level::problem : Level::warning;
  const auto add = [&](const char* name, const char* backend, const at::Device& device, const std::string& version) {
    description.clear();
    const std::string failure = failure_of_backend(backend, device, description);
    if (failure.empty())
      findings.push_back({name, Level::ok, cat(version, version.empty() ? "" : ", ", description)});
    else
      findings.push_back({name, severity, failure,
                          "Runs of several processes (strategy ddp) need it; docs/distributed.md says how its network "
                          "interface is chosen."});
  };
  add("gloo", "gloo", at::Device(at::kCPU), "");
  if (const Accelerator* cuda = find_accelerator("cuda")) add("nccl", "nccl", cuda->device(0), nccl_version());
}

std::vector<std::pair<std::string, std::string>> check_choices(const Config& config, Findings& findings) {
  try {
    const ConfigNode resolved = Trainer::from_config(config).resolved_config();
    const ConfigNode& trainer = *resolved.find("trainer");
    std::vector<std::pair<std::string, std::string>> choices, shown;
    for (const char* key : {"accelerator", "devices", "strategy", "precision", "num_threads"})
      choices.emplace_back(key, chosen(trainer, key));
    if (trains_in_several(config))
      choices.emplace_back("process_group_backend", choices.front().second == "cuda" ? "nccl" : "gloo");
    std::vector<std::string> words;
    for (const auto& [key, value] : choices) words.push_back(cat(key, ": ", value));
    findings.push_back({"auto", Level::ok, join(words)});
    const Accelerator* const cuda = choices.front().second == "cuda" ? find_accelerator("cuda") : nullptr;
    if (cuda != nullptr && cuda->device_count() > 1 && choices[1].second == "1")
      findings.push_back({"auto", Level::note,
                          cat("one of ", cuda->device_count(), " GPUs is used; --trainer.strategy ddp uses all")});
    return choices;
  } catch (...) {
    findings.push_back({"auto", Level::problem, current_failure().message,
                        "Change these options of the config, or make the devices visible that it names."});
    return {};
  }
}

void check_disk(const Config& config, Findings& findings) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  constexpr double kSlow = 20 * kMebibyte, kSlowSync = 0.5;
  const std::filesystem::path folder = existing_folder(config.trainer.default_root_dir);
  try {
    const DiskSpeed speed = measure_disk(folder, kBytes);
    const std::string text =
        cat(escape_controls(folder.string()), ": ", format_fixed(speed.bytes_per_s / kMebibyte, 0), " MiB/s, ",
            format_fixed(speed.sync_s * 1000, 1), " ms a sync, ", gibibytes(speed.free_bytes), " free");
    const bool is_slow = speed.bytes_per_s < kSlow || speed.sync_s > kSlowSync, is_full = speed.free_bytes < kGibibyte;
    findings.push_back(
        {"disk", is_slow || is_full ? Level::warning : Level::ok, text,
         is_full   ? "Free some space, or choose another folder with trainer.default_root_dir."
         : is_slow ? "Checkpoints will take long. Choose a local disk with trainer.default_root_dir, or save less "
                     "often."
                   : ""});
  } catch (...) {
    findings.push_back({"disk", Level::problem, current_failure().message,
                        "Choose a folder that can be written to, with trainer.default_root_dir."});
  }
}

void check_data(const Config& config, Findings& findings) {
  if (!config.data) return;
  const std::string name = config.data.class_path();
  try {
    const auto begin = std::chrono::steady_clock::now();
    const auto data = config.data.create();
    data->prepare_data();
    data->setup(TrainerFn::fit);
    findings.push_back({"data", Level::ok, cat(name, " was set up in ", format_fixed(seconds_since(begin), 1), " s")});
    data->teardown(TrainerFn::fit);
  } catch (...) {
    findings.push_back({"data", Level::problem, cat(name, ": ", current_failure().message),
                        "Correct the options of the data module, or put the files there; docs/data.md says which."});
  }
}

}  // namespace fulgur::cli
