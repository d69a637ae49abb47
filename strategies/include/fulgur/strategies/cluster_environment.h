#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/process_place.h"

namespace fulgur {

/// Environment variables by name.
using Environment = std::map<std::string, std::string>;

/// Those of this process.
FULGUR_API Environment process_environment();

/// What `detect_cluster_environment` can be asked for, `auto` first.
FULGUR_API const std::vector<std::string>& cluster_environment_names();

/// The place that a launcher gave to this process, read from `environment`; none where nobody started it as one of
/// several.
///
/// `auto` takes the first of these whose sign is there (an empty variable counts as absent):
///
/// | name | sign | |
/// |---|---|---|
/// | `launcher` | `FULGUR_LAUNCHER` | a process that `launch` started |
/// | `torchrun` | `TORCHELASTIC_RUN_ID` | |
/// | `slurm` | `SLURM_PROCID`, `SLURM_STEP_ID`, `SLURM_NTASKS` | started by srun; see below |
/// | `mpi` | `OMPI_COMM_WORLD_SIZE`, `MPI_LOCALNRANKS` or `PMI_SIZE` above 1 | started by mpirun of Open MPI, MPICH or
/// Intel | | `variables` | `RANK` or `WORLD_SIZE` | set by hand or by a scheduler |
///
/// Slurm is passed over in an interactive shell (job name `bash` or `interactive` with one task or a terminal), in a
/// batch script outside of srun, and below an mpirun, whose daemons srun has started.
///
/// `wanted` takes one of them or fails, with two exceptions: `launcher` gives no place in the process that is to
/// launch, and `none` never gives one. Throws a DistributedError that names the variable for each value that is
/// missing, is no number or contradicts another, and a ConfigError for an unknown name.
FULGUR_API std::optional<ProcessPlace> detect_cluster_environment(const Environment& environment,
                                                                  const std::string& wanted = "auto");

/// Which of several nodes a launcher stands on, and where node 0 is found.
struct FULGUR_API NodePlace {
  int64_t node_rank = 0;
  std::string main_address = "127.0.0.1";
  int64_t main_port = 0;  ///< 0: a free one, on a single node only
};

/// The node of a process that starts those of its node itself: `NODE_RANK` (or `GROUP_RANK`), `MASTER_ADDR`,
/// `MASTER_PORT`, all of which several nodes need. Throws a DistributedError that names what is missing or wrong.
FULGUR_API NodePlace detect_node(const Environment& environment, int64_t num_nodes);

/// Throws a DistributedError where the processes that were started are not `devices` on each of `num_nodes` nodes.
FULGUR_API void require_place(const ProcessPlace& place, int64_t devices, int64_t num_nodes);

/// The hosts of a Slurm list such as `node[001-016,020],gpu-a3`, in order. Throws a DistributedError where it is none.
FULGUR_API std::vector<std::string> expand_hostlist(const std::string& list);

}  // namespace fulgur
