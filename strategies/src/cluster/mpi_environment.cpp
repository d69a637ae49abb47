#include "cluster/environment_values.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

EnvironmentValues mpi_values(const Environment& environment) {
  return {environment, "mpi",
          cat("mpirun sets it: start with 'mpirun -np N ", program_name(),
              " fit …', or name another cluster_environment.")};
}

/// 20000 to 29999, the same for the same text on every machine (FNV-1a).
int64_t port_of(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return 20000 + static_cast<int64_t>(hash % 10000);
}

/// MPI does not number nodes: this is right if all have the same number of processes, and ranks are assigned node by
/// node (mpirun's default) or in turn (--map-by node). The ranks renumber the nodes once they are connected
/// (node_ranks.h).
void guess_nodes(ProcessPlace& place) {
  place.num_nodes = (place.world_size + place.local_world_size - 1) / place.local_world_size;
  if ((place.rank - place.local_rank) % place.local_world_size == 0)
    place.node_rank = (place.rank - place.local_rank) / place.local_world_size;
  else if (place.rank / place.num_nodes == place.local_rank)
    place.node_rank = place.rank % place.num_nodes;
}

}  // namespace

bool started_by_mpirun(const Environment& environment) {
  const EnvironmentValues values = mpi_values(environment);
  if (values.first_of({"OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"})) return true;
  // srun sets PMI_SIZE=1 for an interactive shell too.
  return values.text("PMI_SIZE").value_or("1") != "1";
}

ProcessPlace mpi_place(const Environment& environment) {
  const EnvironmentValues values = mpi_values(environment);
  const bool mpich = !values.has("OMPI_COMM_WORLD_SIZE") && values.has("PMI_SIZE");
  const PlaceNames names =
      mpich ? PlaceNames{"PMI_RANK",        "PMI_SIZE",          "MPI_LOCALRANKID",
                         "MPI_LOCALNRANKS", "the node's number", "the number of nodes"}
            : PlaceNames{"OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE", "the node's number",    "the number of nodes"};
  ProcessPlace place;
  place.environment = "mpi";
  place.rank = values.need_integer(names.rank, 0);
  place.world_size = values.need_integer(names.world_size, 1);
  place.local_rank = values.need_integer(names.local_rank, 0);
  place.local_world_size = values.need_integer(names.local_world_size, 1);
  guess_nodes(place);
  check_place(values, place, names, Layout::any);

  const EnvironmentValues meeting(
      environment, "mpi",
      "Export both to all processes: 'mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=29500 …' "
      "(MPICH, Intel: -genv MASTER_ADDR … -genv MASTER_PORT …).");
  if (const auto address = meeting.text("MASTER_ADDR"))
    place.main_address = *address;
  else if (place.num_nodes > 1)
    meeting.fail(cat("the address of rank 0 is not known on ", place.num_nodes, " nodes; MASTER_ADDR is not set"));
  if (const auto port = meeting.port("MASTER_PORT"))
    place.main_port = *port;
  else if (const auto job = meeting.first_of({"PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid"}))
    place.main_port = port_of(*meeting.text(*job));
  else if (place.world_size > 1)
    meeting.fail("no port can be derived from the job; MASTER_PORT is not set");
  return place;
}

}  // namespace fulgur::detail
