#pragma once

#include "doctor/finding.h"
#include "fulgur/trainer/config.h"

/// The checks of `doctor`, in the order in which it shows them. None of them throws.
namespace fulgur::cli {

/// CPUs, threads and the limits of their time.
void check_cpus(const Config& config, Findings& findings);
/// Memory, and the limit of the control group.
void check_memory(Findings& findings);
/// The driver and its GPUs; each computes something. Does not load CUDA without a driver that has a device.
void check_gpus(Findings& findings);
/// Gloo, and NCCL if there is a GPU: a group of one process exchanges a number.
void check_backends(const Config& config, Findings& findings);
/// What this machine makes of each `auto` of the config: the values of `trainer` by key. Empty if the config cannot run
/// here, which is a problem.
std::vector<std::pair<std::string, std::string>> check_choices(const Config& config, Findings& findings);
/// The folder of the runs.
void check_disk(const Config& config, Findings& findings);
/// The data module of the config is set up as a fit does it.
void check_data(const Config& config, Findings& findings);

}  // namespace fulgur::cli
