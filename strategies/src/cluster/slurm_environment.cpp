#include <algorithm>
#include <numeric>

#include "cluster/environment_values.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

EnvironmentValues slurm_values(const Environment& environment) {
  return {environment, "slurm",
          cat("srun sets it: start with 'srun --ntasks-per-node N ", program_name(),
              " fit …', or name another cluster_environment.")};
}

/// `8(x128)`, `8,4` or `2(x3),1` as one count per node.
std::vector<int64_t> tasks_per_node(const EnvironmentValues& values, const std::string& name, int64_t num_nodes) {
  const std::string text = values.need_text(name);
  const auto bad = [&] { values.fail(cat(name, " must be counts such as '8(x128)' or '8,4'; it is '", text, "'")); };
  const auto number = [&](std::string_view part) {
    if (!all_digits(part) || part.size() > 9) bad();
    return static_cast<int64_t>(std::stoll(std::string(part)));
  };
  std::vector<int64_t> counts;
  std::string_view rest = text;
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string_view part = rest.substr(0, comma);
    int64_t times = 1;
    if (const size_t mark = part.find("(x"); mark != std::string_view::npos) {
      if (!part.ends_with(')')) bad();
      times = number(part.substr(mark + 2, part.size() - mark - 3));
      part = part.substr(0, mark);
    }
    const int64_t count = number(part);
    if (static_cast<int64_t>(counts.size()) + times > num_nodes)
      values.fail(cat(name, " '", text, "' is for more nodes than the ", num_nodes, " of this job step"));
    counts.insert(counts.end(), static_cast<size_t>(times), count);
    if (comma == rest.size()) break;
    rest.remove_prefix(comma + 1);
  }
  if (static_cast<int64_t>(counts.size()) != num_nodes)
    values.fail(cat(name, " '", text, "' is for ", counts.size(), " nodes; this job step has ", num_nodes));
  return counts;
}

}  // namespace

bool started_by_srun(const Environment& environment) {
  const EnvironmentValues values = slurm_values(environment);
  // A batch script has a SLURM_PROCID too, but is not a step.
  return values.has("SLURM_PROCID") && values.first_of({"SLURM_STEP_ID", "SLURM_STEPID"}) &&
         values.first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
}

bool interactive_slurm(const Environment& environment) {
  const EnvironmentValues values = slurm_values(environment);
  const auto name = values.text("SLURM_JOB_NAME");
  if (name != "bash" && name != "interactive") return false;
  // Tasks that srun starts in such a shell inherit the name: several tasks without a terminal are not a shell.
  const auto tasks = values.text(values.first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or(""));
  return !tasks || tasks == "1" || values.has("SLURM_PTY_PORT");
}

namespace {

// The nodes of a step or job.
struct SlurmNodes {
  int64_t count = 0;
  std::string count_name;          // the variable that tells it
  std::vector<std::string> hosts;  // empty without `list_name`
  std::optional<std::string> list_name;
};

SlurmNodes nodes_of(const EnvironmentValues& values) {
  SlurmNodes nodes;
  nodes.list_name = values.first_of({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  if (nodes.list_name) nodes.hosts = expand_hostlist(*values.text(*nodes.list_name));
  const auto count = values.first_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (!count && !nodes.list_name) values.fail("SLURM_NODELIST is not set");
  nodes.count_name = count ? *count : *nodes.list_name;
  nodes.count = count ? values.need_integer(*count, 1) : static_cast<int64_t>(nodes.hosts.size());
  if (nodes.list_name && static_cast<int64_t>(nodes.hosts.size()) != nodes.count)
    values.fail(cat(nodes.count_name, " is ", nodes.count, ", but ", *nodes.list_name, " '",
                    *values.text(*nodes.list_name), "' has ", nodes.hosts.size()));
  return nodes;
}

// The number of tasks on each node, and the variable that tells it.
struct SlurmTasks {
  std::vector<int64_t> counts;
  std::string name;
};

// `total` is the variable with the number of all tasks.
SlurmTasks tasks_of(const EnvironmentValues& values, const ProcessPlace& place, const std::string& total) {
  SlurmTasks tasks;
  if (const auto name = values.first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}))
    tasks = {tasks_per_node(values, *name, place.num_nodes), *name};
  else if (values.has("SLURM_NTASKS_PER_NODE"))
    tasks = {
        std::vector<int64_t>(static_cast<size_t>(place.num_nodes), values.need_integer("SLURM_NTASKS_PER_NODE", 1)),
        "SLURM_NTASKS_PER_NODE"};
  else if (place.num_nodes == 1)
    tasks = {{place.world_size}, total};
  else
    values.fail("SLURM_STEP_TASKS_PER_NODE is not set");
  if (const int64_t sum = std::accumulate(tasks.counts.begin(), tasks.counts.end(), int64_t{0});
      sum != place.world_size)
    values.fail(cat(tasks.name, " '", *values.text(tasks.name), "' makes ", sum, " tasks on ", place.num_nodes,
                    " nodes, but ", total, " is ", place.world_size));
  return tasks;
}

// All tasks must derive the same port without communication; the rule is Lightning's.
int64_t port_of_job(const EnvironmentValues& values) {
  const std::string job = values.need_text(values.first_of({"SLURM_JOB_ID", "SLURM_JOBID"}).value_or("SLURM_JOB_ID"));
  if (!all_digits(job))
    values.fail(cat("SLURM_JOB_ID must be a number, from which the port is derived; it is '", job, "'"));
  return 15000 + std::stoll(job.substr(job.size() - std::min<size_t>(job.size(), 4)));
}

}  // namespace

ProcessPlace slurm_place(const Environment& environment) {
  const EnvironmentValues values = slurm_values(environment);
  // A step may be smaller than its job.
  const std::string total = values.first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or("SLURM_NTASKS");
  ProcessPlace place;
  place.environment = "slurm";
  place.world_size = values.need_integer(total, 1);
  place.rank = values.need_integer("SLURM_PROCID", 0);
  place.local_rank = values.need_integer("SLURM_LOCALID", 0);
  place.node_rank = values.need_integer("SLURM_NODEID", 0);

  const SlurmNodes nodes = nodes_of(values);
  place.num_nodes = nodes.count;
  if (place.node_rank >= place.num_nodes)
    values.fail(
        cat("SLURM_NODEID must be below the number of nodes; they are ", place.node_rank, " and ", place.num_nodes));
  const SlurmTasks tasks = tasks_of(values, place, total);
  place.local_world_size = tasks.counts[static_cast<size_t>(place.node_rank)];
  check_place(values, place, {"SLURM_PROCID", total, "SLURM_LOCALID", tasks.name, "SLURM_NODEID", nodes.count_name},
              Layout::any);

  if (const auto address = values.text("MASTER_ADDR")) {
    place.main_address = *address;
  } else if (place.num_nodes > 1) {
    if (!nodes.list_name) values.fail("SLURM_STEP_NODELIST and MASTER_ADDR are not set");
    place.main_address = nodes.hosts.front();
  }
  if (const auto port = values.port("MASTER_PORT"))
    place.main_port = *port;
  else if (place.world_size > 1)
    place.main_port = port_of_job(values);
  return place;
}

}  // namespace fulgur::detail
