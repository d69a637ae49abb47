#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/process_place.h"
#include "fulgur/core/export.h"

namespace fulgur {

/// The values of environment variables by name.
using Environment = std::map<std::string, std::string>;

/// The environment variables of this process.
FULGUR_API Environment process_environment();

/// A launcher or scheduler that a program or plug-in adds: where it puts the place of a process. `cluster_environment`
/// names it as it is registered, without options; `auto` asks it before the built-in ones, except `launcher`.
class FULGUR_API ClusterEnvironment {
 public:
  static constexpr const char* kRegistryKind = "cluster_environment";

  virtual ~ClusterEnvironment();
  /// The place of this process, from these variables; nullopt if another launcher has started it. May be called several
  /// times, on any thread. Throws a DistributedError for variables that contradict each other.
  virtual std::optional<ProcessPlace> detect(const Environment& environment) const = 0;
};

/// Values accepted by `detect_cluster_environment`, `auto` first, those that were added last.
FULGUR_API std::vector<std::string> cluster_environment_names();

/// The place that a launcher assigned to this process, read from `environment`; nullopt if it was not started as one of
/// several.
///
/// `auto` takes the first of these whose variables are set (an empty variable counts as unset):
///
/// | name | variables | |
/// |---|---|---|
/// | `launcher` | `FULGUR_LAUNCHER` | a process started by `launch` |
/// | `torchrun` | `TORCHELASTIC_RUN_ID` | |
/// | `slurm` | `SLURM_PROCID`, `SLURM_STEP_ID`, `SLURM_NTASKS` | started by srun; see below |
/// | `mpi` | `OMPI_COMM_WORLD_SIZE`, `MPI_LOCALNRANKS` or `PMI_SIZE` above 1 | mpirun of Open MPI, MPICH or Intel |
/// | `variables` | `RANK` or `WORLD_SIZE` | set by hand or by a scheduler |
///
/// A `ClusterEnvironment` of a program or plug-in comes after `launcher`.
///
/// Slurm is skipped in an interactive shell (job name `bash` or `interactive` with one task or a terminal), in a batch
/// script outside srun, and under an mpirun whose daemons srun has started.
///
/// `wanted` selects one of them, or one that was added, or fails, with two exceptions: `launcher` returns nullopt in
/// the process that is to launch, and `none` always does. Throws a DistributedError that names the variable for each
/// value that is missing, is not a number or contradicts another, and a ConfigError for an unknown name.
FULGUR_API std::optional<ProcessPlace> detect_cluster_environment(const Environment& environment,
                                                                  const std::string& wanted = "auto");

/// Which of several nodes a launcher runs on, and how to reach node 0.
struct FULGUR_API NodePlace {
  int64_t node_rank = 0;
  std::string main_address = "127.0.0.1";
  int64_t main_port = 0;  ///< 0 for a free port, on a single node only
};

/// The node of a process that starts its node's processes itself: `NODE_RANK` (or `GROUP_RANK`), `MASTER_ADDR`,
/// `MASTER_PORT`, all required with several nodes. Throws a DistributedError that names what is missing or wrong.
FULGUR_API NodePlace detect_node(const Environment& environment, int64_t num_nodes);

/// Throws a DistributedError unless `devices` processes were started on each of `num_nodes` nodes.
FULGUR_API void require_place(const ProcessPlace& place, int64_t devices, int64_t num_nodes);

/// The hosts of a Slurm list such as `node[001-016,020],gpu-a3`, in order. Throws a DistributedError if it is not
/// valid.
FULGUR_API std::vector<std::string> expand_hostlist(const std::string& list);

}  // namespace fulgur
