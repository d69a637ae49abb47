#include "fulgur/strategies/cluster_environment.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cluster/added_environments.h"
#include "cluster/environment_values.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

using detail::EnvironmentValues;

const detail::PlaceNames kTorchNames{
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "the number of nodes (GROUP_WORLD_SIZE)"};

bool is_set(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found != environment.end() && !found->second.empty();
}

/// Variables set by both launcher and torchrun.
ProcessPlace read_torch_variables(const EnvironmentValues& values, std::string name) {
  ProcessPlace place;
  place.environment = std::move(name);
  place.rank = values.need_integer("RANK", 0);
  place.world_size = values.need_integer("WORLD_SIZE", 1);
  place.local_rank = values.need_integer("LOCAL_RANK", 0);
  place.local_world_size = values.need_integer("LOCAL_WORLD_SIZE", 1);
  place.node_rank = values.need_integer("GROUP_RANK", 0);
  if (const auto nodes = values.integer("GROUP_WORLD_SIZE", 1)) {
    place.num_nodes = *nodes;
  } else if (place.world_size % place.local_world_size != 0) {
    values.fail(cat("WORLD_SIZE must be a multiple of LOCAL_WORLD_SIZE if GROUP_WORLD_SIZE is not set; they are ",
                    place.world_size, " and ", place.local_world_size));
  } else {
    place.num_nodes = place.world_size / place.local_world_size;
  }
  place.main_address = values.need_text("MASTER_ADDR");
  place.main_port = values.need_port("MASTER_PORT");
  return place;
}

ProcessPlace launcher_place(const Environment& environment) {
  const EnvironmentValues values(
      environment, "launcher",
      cat("'", program_name(),
          " fit' sets these variables for the processes that it starts; unset FULGUR_LAUNCHER in others."));
  ProcessPlace place = read_torch_variables(values, "launcher");
  place.store_is_hosted = true;
  place.restarts = values.integer("FULGUR_RESTARTS", 0).value_or(0);
  check_place(values, place, kTorchNames, detail::Layout::even_blocks);
  return place;
}

ProcessPlace torchrun_place(const Environment& environment) {
  const EnvironmentValues values(environment, "torchrun",
                                 cat("torchrun sets it: start with 'torchrun --no-python --nproc-per-node N ",
                                     program_name(), " fit …', or name another cluster_environment."));
  values.need_text("TORCHELASTIC_RUN_ID");
  ProcessPlace place = read_torch_variables(values, "torchrun");
  // As in PyTorch: the agent hosts the store only if the value is Python's True; otherwise rank 0 hosts it.
  place.store_is_hosted = values.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  place.restarts = values.integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  // Agents may have different numbers of workers.
  check_place(values, place, kTorchNames, detail::Layout::any);
  return place;
}

ProcessPlace variables_place(const Environment& environment) {
  const EnvironmentValues values(
      environment, "variables",
      "Set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each process (and LOCAL_RANK, LOCAL_WORLD_SIZE if nodes "
      "have several); to train without other processes, unset them or set cluster_environment: none.");
  ProcessPlace place;
  place.environment = "variables";
  place.rank = values.need_integer("RANK", 0);
  place.world_size = values.need_integer("WORLD_SIZE", 1);
  if (place.rank >= place.world_size)
    values.fail(cat("RANK must be below WORLD_SIZE; they are ", place.rank, " and ", place.world_size));
  if (place.world_size > 1) {
    place.main_address = values.need_text("MASTER_ADDR");
    place.main_port = values.need_port("MASTER_PORT");
  } else {
    place.main_address = values.text("MASTER_ADDR").value_or("127.0.0.1");
    place.main_port = values.port("MASTER_PORT").value_or(0);
  }

  const auto local_rank = values.integer("LOCAL_RANK", 0), local_size = values.integer("LOCAL_WORLD_SIZE", 1);
  const auto node_rank = values.integer("NODE_RANK", 0), group_rank = values.integer("GROUP_RANK", 0);
  if (node_rank && group_rank && node_rank != group_rank)
    values.fail(cat("NODE_RANK and GROUP_RANK mean the same; they are ", *node_rank, " and ", *group_rank));
  const auto node = node_rank ? node_rank : group_rank;
  const auto nodes = values.integer("GROUP_WORLD_SIZE", 1);

  if (local_size) {
    place.local_world_size = *local_size;
  } else if (nodes && place.world_size % *nodes == 0) {
    place.local_world_size = place.world_size / *nodes;
  } else if (place.world_size == 1 || detail::is_loopback(place.main_address)) {
    place.local_world_size = place.world_size;
  } else if (local_rank.value_or(0) > 0 || (node && *node != place.rank)) {
    values.fail("LOCAL_WORLD_SIZE, the number of processes of this node, is not set");
  } else if (local_rank && !node) {
    values.fail("LOCAL_RANK is set, but LOCAL_WORLD_SIZE, the number of processes of this node, is not");
  }
  place.num_nodes = nodes.value_or(place.world_size / place.local_world_size);
  place.local_rank = local_rank.value_or(place.rank % place.local_world_size);
  place.node_rank = node.value_or(place.rank / place.local_world_size);
  check_place(values, place,
              {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
               group_rank && !node_rank ? "GROUP_RANK" : "NODE_RANK", "the number of nodes"},
              detail::Layout::even_blocks);
  return place;
}

}  // namespace

Environment process_environment() {
  Environment out;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (const size_t mark = text.find('='); mark != std::string_view::npos)
      out.emplace(text.substr(0, mark), text.substr(mark + 1));
  }
  return out;
}

detail::AddedEnvironments& detail::added_environments() {
  static AddedEnvironments functions;
  return functions;
}

std::vector<std::string> cluster_environment_names() {
  std::vector<std::string> names{"auto", "launcher", "torchrun", "slurm", "mpi", "variables", "none"};
  if (const auto added = detail::added_environments(); added.names != nullptr)
    for (std::string& name : added.names()) names.push_back(std::move(name));
  return names;
}

std::optional<ProcessPlace> detect_cluster_environment(const Environment& environment, const std::string& wanted) {
  const std::vector<std::string> names = cluster_environment_names();
  if (std::ranges::find(names, wanted) == names.end())
    throw ConfigError(cat("[strategies.cluster_environment] there is no cluster environment '", wanted, "'",
                          did_you_mean(wanted, names), ". Use one of ", join(names), "."));
  const bool any = wanted == "auto";
  if (wanted == "none") return std::nullopt;
  if ((any || wanted == "launcher") && is_set(environment, "FULGUR_LAUNCHER")) return launcher_place(environment);
  if (wanted == "launcher") return std::nullopt;
  if (const auto added = detail::added_environments(); added.names != nullptr) {
    for (const std::string& name : added.names()) {
      if (!any && wanted != name) continue;
      if (auto place = added.detect(name, environment)) return place;
      if (!any)
        throw DistributedError(cat("[strategies.cluster_environment] cluster_environment is ", name,
                                   ", which does not recognise this process. Start it with that launcher, or set "
                                   "cluster_environment: auto."));
    }
  }
  if (wanted == "torchrun" || (any && is_set(environment, "TORCHELASTIC_RUN_ID"))) return torchrun_place(environment);
  // The daemons of an mpirun are tasks of srun, and the processes they start inherit those tasks' variables.
  if (wanted == "slurm" || (any && detail::started_by_srun(environment) && !detail::interactive_slurm(environment) &&
                            !is_set(environment, "OMPI_COMM_WORLD_SIZE") && !is_set(environment, "MPI_LOCALNRANKS")))
    return detail::slurm_place(environment);
  if (wanted == "mpi" || (any && detail::started_by_mpirun(environment))) return detail::mpi_place(environment);
  if (wanted == "variables" || is_set(environment, "RANK") || is_set(environment, "WORLD_SIZE"))
    return variables_place(environment);
  return std::nullopt;
}

NodePlace detect_node(const Environment& environment, int64_t num_nodes) {
  const EnvironmentValues values(environment, cat("launcher on ", counted(num_nodes, "node")),
                                 "Give each node its NODE_RANK and all of them the same MASTER_ADDR (of node 0) and "
                                 "MASTER_PORT, or start with torchrun, srun or mpirun.");
  NodePlace node;
  node.main_port = values.port("MASTER_PORT").value_or(0);
  if (num_nodes <= 1) return node;
  const auto name = values.first_of({"NODE_RANK", "GROUP_RANK"});
  node.node_rank = values.need_integer(name.value_or("NODE_RANK"), 0);
  if (node.node_rank >= num_nodes)
    values.fail(cat(name.value_or("NODE_RANK"), " must be below the number of nodes; it is ", node.node_rank));
  node.main_address = values.need_text("MASTER_ADDR");
  values.need_port("MASTER_PORT");
  return node;
}

void require_place(const ProcessPlace& place, int64_t devices, int64_t num_nodes) {
  if (place.local_world_size == devices && place.num_nodes == num_nodes) return;
  throw DistributedError(
      cat("[strategies.cluster_environment] ", place.environment, " started ", place.local_world_size,
          " processes on this node and ", counted(place.num_nodes, "node"), " in all; the config requests devices ",
          devices, " and num_nodes ", num_nodes, " (rank ", place.rank, " of ", place.world_size,
          "). Start one process per device, or change devices and num_nodes",
          place.world_size == 1 ? "; with cluster_environment: launcher, trainer starts the processes itself." : "."));
}

}  // namespace fulgur
