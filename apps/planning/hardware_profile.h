#pragma once

#include <ATen/core/ScalarType.h>

#include <string>
#include <vector>

#include "fulgur/core/options/options.h"

namespace fulgur::cli {

/// How fast devices exchange tensors.
struct LinkProfile {
  double gb_s = 0;        ///< of a ring, for each device and direction
  double latency_us = 0;  ///< of a message
  void fields(Fields& f);
};

/// Peaks of matrix products.
struct TeraFlops {
  double float32 = 0, tf32 = 0, half = 0;
  void fields(Fields& f);
};

/// What the plan knows about machines: `docs/plan.md` describes the file.
struct HardwareProfile {
  std::string name;
  std::string source;  ///< where the numbers are from
  int64_t devices_per_node = 8;
  double memory_gib = 0;
  double reserved_gib = 0;
  double workspace_mib = 0;
  double memory_gb_s = 0;
  double memory_efficiency = 0.8;
  TeraFlops tflops;
  double matmul_efficiency = 0.7;
  double kernel_us = 0;
  LinkProfile intra, inter;
  double exchange_us = 0;
  double jitter = 0.01;
  double mtbf_hours = 50000;
  double restart_s = 300;
  double host_copy_gb_s = 0;
  double storage_gb_s = 0;
  void fields(Fields& f);

  double peak_flops(at::ScalarType dtype, bool tf32) const;
};

/// Profiles that are part of the program, and their texts.
struct BuiltInProfile {
  const char* name;
  const char* text;
};
const std::vector<BuiltInProfile>& built_in_profiles();

/// The profile of that name, or in that YAML file. Throws a ConfigError for an unknown name, or what is wrong in the
/// file.
HardwareProfile load_profile(const std::string& name_or_file);

}  // namespace fulgur::cli
