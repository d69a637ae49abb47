#include "doctor/machine_facts.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <torch/csrc/api/include/torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/system/process_limits.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

/// The text after `before` in the first line of a file that begins with `key`; empty if there is none.
std::string value_in(const char* path, std::string_view key, char before) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find(before);
    if (at == std::string::npos) return {};
    const size_t begin = line.find_first_not_of(" \t\"", at + 1), end = line.find_last_not_of(" \t\"");
    return begin == std::string::npos ? std::string() : line.substr(begin, end + 1 - begin);
  }
  return {};
}

std::string or_unknown(std::string text) { return text.empty() ? std::string("unknown") : std::move(text); }

// LibTorch's libraries for the GPU are loaded with the driver only, so their versions cannot be linked.
template <class Result>
auto loaded_function(const char* name) {
  return reinterpret_cast<Result (*)(int*)>(::dlsym(RTLD_DEFAULT, name));
}

// CUDA's number for a version: 13000 is 13.0.
std::string cuda_runtime_version() {
  int number = 0;
  const auto version = loaded_function<int>("cudaRuntimeGetVersion");
  if (version == nullptr || version(&number) != 0) return {};
  return cat(number / 1000, ".", number % 1000 / 10);
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

constexpr const char* kPrefixes[] = {"OMP_",    "MKL_",     "KMP_",    "GOMP_",          "ATEN_", "DNNL_",
                                     "ONEDNN_", "CUDA_",    "CUBLAS_", "NVIDIA_",        "NCCL_", "GLOO_",
                                     "TORCH_",  "PYTORCH_", "FULGUR_", "SIMULATED_CUDA_"};

bool is_computing_variable(std::string_view name) {
  return std::ranges::any_of(kPrefixes, [&](const char* prefix) { return name.starts_with(prefix); }) ||
         name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD" || name == "MASTER_ADDR" || name == "MASTER_PORT" ||
         name == "RANK" || name == "WORLD_SIZE" || name == "LOCAL_RANK";
}

}  // namespace

std::string gibibytes(int64_t bytes) {
  return cat(format_fixed(static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30), 1), " GiB");
}

std::string driver_version() {
  // `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …`: the first word of digits and points.
  const std::string line = value_in("/proc/driver/nvidia/version", "NVRM version", ':');
  for (const std::string& word : split_text(line, ' '))
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  return {};
}

std::string nccl_version() {
  int number = 0;
  const auto version = loaded_function<int>("ncclGetVersion");
  if (version == nullptr || version(&number) != 0) return {};
  return cat(number / 10000, ".", number / 100 % 100, ".", number % 100);
}

Facts version_facts() {
  struct utsname system {};
  ::uname(&system);
  Facts facts{{"fulgur", cat(FULGUR_VERSION, built_for_cpu() ? ", built for the CPU" : "")},
              {"LibTorch", TORCH_VERSION},
              {"compiler", compiler()},
              {"C library", cat("glibc ", ::gnu_get_libc_version())},
              {"system", or_unknown(value_in("/etc/os-release", "PRETTY_NAME=", '='))},
              {"kernel", cat(system.sysname, " ", system.release, " ", system.machine)}};
  const bool has_cuda = find_accelerator("cuda") != nullptr;
  const std::string driver = driver_version();
  facts.emplace_back("NVIDIA driver", !driver.empty() ? driver : has_cuda ? "unknown" : "none");
  facts.emplace_back("CUDA", has_cuda ? or_unknown(cuda_runtime_version()) : cat("not used: ", why_no_cuda()));
  if (has_cuda) facts.emplace_back("NCCL", or_unknown(nccl_version()));
  return facts;
}

Facts hardware_facts() {
  const SystemMemory memory = system_memory();
  const ProcessLimits limits = process_limits();
  Facts facts{{"CPU", or_unknown(value_in("/proc/cpuinfo", "model name", ':'))},
              {"CPUs", cat(usable_cpus(), " usable of ", ::sysconf(_SC_NPROCESSORS_ONLN),
                           limits.cpus ? cat(", CPU time limited to ", format_fixed(*limits.cpus, 2)) : "")},
              {"CPU kernels", at::get_cpu_capability()},
              {"memory", cat(gibibytes(memory.total), ", ", gibibytes(memory.available), " available",
                             limits.memory_bytes ? cat(", limited to ", gibibytes(*limits.memory_bytes)) : "")}};
  if (const Accelerator* cuda = find_accelerator("cuda"))
    for (int64_t i = 0; i < cuda->device_count(); ++i) facts.emplace_back(cat("cuda:", i), cuda->device_name(i));
  return facts;
}

Facts variable_facts() {
  Facts facts;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    if (!is_computing_variable(name)) continue;
    const bool is_option = name.starts_with("FULGUR_") && name.find("__") != std::string::npos;
    facts.emplace_back(name, is_option ? "(set)" : std::string(text.substr(equals + 1)));
  }
  std::ranges::sort(facts);
  return facts;
}

}  // namespace fulgur::cli
