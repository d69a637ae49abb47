#pragma once

#include <cstdint>
#include <string>

#include "fulgur/strategies/cluster_environment.h"

namespace fulgur::test {

/// What torchrun gives to a process of `nodes` x `per_node`.
inline Environment torchrun_environment(int64_t rank, int64_t nodes, int64_t per_node) {
  return {{"TORCHELASTIC_RUN_ID", "job-7"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"MASTER_ADDR", "node001"},
          {"MASTER_PORT", "29400"},
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(nodes * per_node)},
          {"LOCAL_RANK", std::to_string(rank % per_node)},
          {"LOCAL_WORLD_SIZE", std::to_string(per_node)},
          {"GROUP_RANK", std::to_string(rank / per_node)},
          {"GROUP_WORLD_SIZE", std::to_string(nodes)}};
}

/// What srun gives to a task, by the variables that Slurm 22.05 was seen to set.
inline Environment slurm_environment(int64_t rank, int64_t nodes, int64_t per_node) {
  const std::string tasks = std::to_string(nodes * per_node), count = std::to_string(nodes);
  const std::string hosts = nodes == 1 ? "gpu007"
                                       : "gpu[007-" + std::string(nodes + 6 < 100 ? nodes + 6 < 10 ? "00" : "0" : "") +
                                             std::to_string(nodes + 6) + "]";
  const std::string each = std::to_string(per_node) + (nodes == 1 ? "" : "(x" + count + ")");
  return {{"SLURM_JOB_ID", "7654321"},
          {"SLURM_JOB_NAME", "train"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", std::to_string(rank % per_node)},
          {"SLURM_NODEID", std::to_string(rank / per_node)},
          {"SLURM_NTASKS", tasks},
          {"SLURM_STEP_NUM_TASKS", tasks},
          {"SLURM_NNODES", count},
          {"SLURM_STEP_NUM_NODES", count},
          {"SLURM_NODELIST", hosts},
          {"SLURM_STEP_NODELIST", hosts},
          {"SLURM_TASKS_PER_NODE", each},
          {"SLURM_STEP_TASKS_PER_NODE", each}};
}

/// `environment` with one variable changed, or taken away if there is no value.
inline Environment with(Environment environment, const std::string& name, const char* value) {
  if (value)
    environment[name] = value;
  else
    environment.erase(name);
  return environment;
}

}  // namespace fulgur::test
