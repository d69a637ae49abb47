#pragma once

#include <cstdint>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// The place of this process among the processes of a run, and the address at which they meet.
struct FULGUR_API ProcessPlace {
  std::string environment = "none";  ///< launcher, torchrun, slurm, mpi or variables; `none` for a single process
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_world_size = 1;  ///< place among the processes of this node
  int64_t node_rank = 0, num_nodes = 1;
  std::string main_address = "127.0.0.1";  ///< where the run's store listens
  int64_t main_port = 0;
  bool store_is_hosted = false;  ///< another process (launcher, torchrun's agent) hosts the store; else rank 0 does
  int64_t restarts = 0;          ///< number of restarts of the group after failures
};

}  // namespace fulgur
