#include "planning/hardware_profile.h"

#include "fulgur/core/options/config_node.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::cli {

void LinkProfile::fields(Fields& f) {
  f(gb_s, "gb_s", "Bandwidth of each device in a ring, in 1e9 bytes per second and direction.").greater_than(0);
  f(latency_us, "latency_us", "Time of a message without bytes, in microseconds.").at_least(0);
}

void TeraFlops::fields(Fields& f) {
  f(float32, "float32", "In float32.").greater_than(0);
  f(tf32, "tf32", "In TF32; that of float32 for devices without it.").greater_than(0);
  f(half, "half", "In bfloat16 and float16.").greater_than(0);
}

void HardwareProfile::fields(Fields& f) {
  f(name, "name", "Name of the machine.").required();
  f(source, "source", "Where the numbers are from.");
  f(devices_per_node, "devices_per_node", "Devices of a node, if --devices is not given.").at_least(1);
  f(memory_gib, "memory_gib", "Memory of a device, in GiB.").greater_than(0).required();
  f(reserved_gib, "reserved_gib",
    "Memory that no tensor gets: the driver's, libraries' and lost between blocks, in GiB.")
      .at_least(0);
  f(workspace_mib, "workspace_mib", "Tensors that libraries of matrix products keep, in MiB.").at_least(0);
  f(memory_gb_s, "memory_gb_s", "Peak bandwidth of a device's memory, in 1e9 bytes per second.")
      .greater_than(0)
      .required();
  f(memory_efficiency, "memory_efficiency", "Part of it that kernels reach.").greater_than(0).at_most(1);
  f(tflops, "tflops", "Peak of matrix products, in 1e12 operations per second.").required();
  f(matmul_efficiency, "matmul_efficiency", "Part of it that kernels reach.").greater_than(0).at_most(1);
  f(kernel_us, "kernel_us", "Least time between the begins of two kernels, in microseconds.").at_least(0);
  f(intra, "intra", "Between the devices of a node.").required();
  f(inter, "inter", "Between devices of two nodes; gb_s is that of one device.").required();
  f(exchange_us, "exchange_us", "Time to start an exchange, in microseconds.").at_least(0);
  f(jitter, "jitter", "Standard deviation of a rank's step time, as a part of it.").at_least(0).at_most(1);
  f(mtbf_hours, "mtbf_hours", "Mean time between failures of one device, in hours.").greater_than(0);
  f(restart_s, "restart_s", "Time from a failure until training continues, in seconds.").at_least(0);
  f(host_copy_gb_s, "host_copy_gb_s", "Bandwidth from a device to its host, in 1e9 bytes per second.")
      .greater_than(0)
      .required();
  f(storage_gb_s, "storage_gb_s", "Bandwidth to the disk of checkpoints, in 1e9 bytes per second.")
      .greater_than(0)
      .required();
}

double HardwareProfile::peak_flops(at::ScalarType dtype, bool uses_tf32) const {
  if (dtype == at::kHalf || dtype == at::kBFloat16) return tflops.half * 1e12;
  const double single = (uses_tf32 ? tflops.tf32 : tflops.float32) * 1e12;
  return dtype == at::kDouble ? single / 2 : single;
}

HardwareProfile load_profile(const std::string& name_or_file) {
  Problems problems;
  ConfigNode node;
  const bool is_file =
      name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".yaml") || name_or_file.ends_with(".yml");
  if (is_file) {
    node = load_yaml_file(name_or_file, problems);
  } else {
    std::vector<std::string> names;
    const BuiltInProfile* found = nullptr;
    for (const BuiltInProfile& profile : built_in_profiles()) {
      names.emplace_back(profile.name);
      if (name_or_file == profile.name) found = &profile;
    }
    if (found == nullptr)
      throw ConfigError(cat("[cli.plan] there is no profile '", escape_controls(name_or_file), "'",
                            as_sentence(did_you_mean(name_or_file, names)), "The program has ", join(names),
                            "; a profile of your own is a YAML file, as --profile mine.yaml."));
    node = parse_yaml(found->text, cat("profile ", found->name), problems);
  }
  problems.throw_if_any();
  if (!node.is_map()) {
    problems.add(node.where, "",
                 "a profile is a map with keys such as name, memory_gib, tflops; got " + node.describe());
    problems.throw_if_any();
  }
  HardwareProfile profile;
  Fields fields;
  profile.fields(fields);
  fields.read(node, problems, "");
  problems.throw_if_any();
  return profile;
}

}  // namespace fulgur::cli
