#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "made_up_clusters.h"
#include "support/expect_error.h"

namespace cluster_environment_test {

namespace {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::with;

std::string error_of(const Environment& environment, const std::string& wanted = "auto") {
  return test::message_of<DistributedError>([&] { detect_cluster_environment(environment, wanted); });
}

/// Changes one variable and looks for its name and value in the error; `nullptr` takes it away.
void check_bad(const Environment& good, const std::string& name, const char* value, const std::string& says,
               const std::string& wanted = "auto") {
  INFO(name << "=" << (value ? value : "(absent)"));
  const std::string message = error_of(with(good, name, value), wanted);
  CHECK_THAT(message, ContainsSubstring(name));
  CHECK_THAT(message, ContainsSubstring(says));
  CHECK(message.starts_with("[strategies.cluster_environment] "));
}

ProcessPlace place_of(const Environment& environment, const std::string& wanted = "auto") {
  return detect_cluster_environment(environment, wanted).value();
}

void check_numbers(const ProcessPlace& place, int64_t rank, int64_t world, int64_t local, int64_t local_world,
                   int64_t node, int64_t nodes) {
  CHECK(place.rank == rank);
  CHECK(place.world_size == world);
  CHECK(place.local_rank == local);
  CHECK(place.local_world_size == local_world);
  CHECK(place.node_rank == node);
  CHECK(place.num_nodes == nodes);
}

Environment launcher_environment() {
  Environment out = test::torchrun_environment(5, 2, 4);
  out.erase("TORCHELASTIC_RUN_ID");
  out.insert({{"FULGUR_LAUNCHER", "1"}, {"FULGUR_RESTARTS", "3"}, {"NODE_RANK", "1"}});
  return out;
}

Environment plain_variables() {
  return {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
}

/// As Open MPI 4.1 was seen to set them.
Environment open_mpi_environment(int64_t rank, int64_t world, int64_t local, int64_t local_world) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(world)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_world)},
          {"OMPI_COMM_WORLD_NODE_RANK", std::to_string(local)},
          {"PMIX_NAMESPACE", "101253121"},
          {"OMPI_MCA_orte_hnp_uri", "101253120.0;tcp://192.0.2.2:50207"}};
}

Environment all_of_them() {
  Environment out = launcher_environment();
  for (const Environment& more :
       {test::torchrun_environment(5, 2, 4), test::slurm_environment(5, 2, 4), open_mpi_environment(5, 8, 1, 4)})
    out.insert(more.begin(), more.end());
  return out;
}

}  // namespace

TEST_CASE("the environment is found in the documented order") {
  Environment environment = all_of_them();
  CHECK(place_of(environment).environment == "launcher");
  environment.erase("FULGUR_LAUNCHER");
  CHECK(place_of(environment).environment == "torchrun");
  environment.erase("TORCHELASTIC_RUN_ID");
  // srun started the daemons of this mpirun.
  CHECK(place_of(environment).environment == "mpi");
  CHECK(place_of(environment, "slurm").environment == "slurm");
  environment.erase("OMPI_COMM_WORLD_SIZE");
  CHECK(place_of(environment).environment == "slurm");
  environment.erase("SLURM_STEP_ID");
  CHECK(place_of(environment).environment == "variables");
  environment.erase("RANK");
  environment.erase("WORLD_SIZE");
  CHECK(detect_cluster_environment(environment) == std::nullopt);
  CHECK(detect_cluster_environment({}) == std::nullopt);
  // Empty is absent.
  CHECK(detect_cluster_environment(
            {{"FULGUR_LAUNCHER", ""}, {"TORCHELASTIC_RUN_ID", ""}, {"RANK", ""}, {"WORLD_SIZE", ""}}) == std::nullopt);
}

TEST_CASE("the environment can be named") {
  const Environment environment = all_of_them();
  for (const std::string name : {"launcher", "torchrun", "slurm", "mpi", "variables"})
    CHECK(place_of(environment, name).environment == name);
  CHECK(detect_cluster_environment(environment, "none") == std::nullopt);
  // The process that is to launch has no place yet.
  CHECK(detect_cluster_environment(with(environment, "FULGUR_LAUNCHER", nullptr), "launcher") == std::nullopt);
  CHECK_THAT(error_of({}, "torchrun"), ContainsSubstring("TORCHELASTIC_RUN_ID is not set"));
  CHECK_THAT(error_of({}, "slurm"), ContainsSubstring("SLURM_NTASKS is not set"));
  CHECK_THAT(error_of({}, "mpi"), ContainsSubstring("OMPI_COMM_WORLD_RANK is not set"));
  CHECK_THAT(error_of({}, "variables"), ContainsSubstring("RANK is not set"));
  const std::string unknown = test::message_of<ConfigError>([&] { detect_cluster_environment({}, "slrum"); });
  CHECK_THAT(unknown, ContainsSubstring("'slrum'") && ContainsSubstring("did you mean 'slurm'"));
}

TEST_CASE("launcher: what it gave to its processes") {
  const ProcessPlace place = place_of(launcher_environment());
  check_numbers(place, 5, 8, 1, 4, 1, 2);
  CHECK(place.main_address == "node001");
  CHECK(place.main_port == 29400);
  CHECK(place.store_is_hosted);
  CHECK(place.restarts == 3);
  check_bad(launcher_environment(), "RANK", "6", "give 5; it is 6");
  check_bad(launcher_environment(), "FULGUR_RESTARTS", "x", "it is 'x'");
}

TEST_CASE("torchrun: agents may have different numbers of workers") {
  ProcessPlace place = place_of(test::torchrun_environment(5, 2, 4));
  check_numbers(place, 5, 8, 1, 4, 1, 2);
  CHECK(place.store_is_hosted);
  CHECK(place.restarts == 2);
  place = place_of(with(test::torchrun_environment(5, 2, 4), "TORCHELASTIC_USE_AGENT_STORE", "False"));
  CHECK_FALSE(place.store_is_hosted);

  // 8 workers here, 4 there.
  Environment uneven = test::torchrun_environment(9, 2, 8);
  uneven["WORLD_SIZE"] = "12";
  uneven["LOCAL_WORLD_SIZE"] = "4";
  check_numbers(place_of(uneven), 9, 12, 1, 4, 1, 2);
  check_bad(with(uneven, "GROUP_WORLD_SIZE", nullptr), "LOCAL_WORLD_SIZE", "5", "12 and 5");
}

TEST_CASE("torchrun: each wrong value is named") {
  const Environment good = test::torchrun_environment(5, 2, 4);
  for (const std::string name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    check_bad(good, name, nullptr, "is not set");
    check_bad(good, name, "", "is not set");
  }
  for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                                 "GROUP_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}) {
    check_bad(good, name, "two", "whole number; it is 'two'");
    check_bad(good, name, "1.5", "whole number; it is '1.5'");
    check_bad(good, name, " 1", "whole number");
    check_bad(good, name, "-1", "it is -1");
    check_bad(good, name, "99999999999999999999", "it is 99999999999999999999");
  }
  check_bad(good, "RANK", "8", "8 and 8");
  check_bad(good, "LOCAL_RANK", "4", "4 and 4");
  check_bad(good, "GROUP_RANK", "2", "2 and 2");
  check_bad(good, "WORLD_SIZE", "0", "it is 0");
  check_bad(good, "WORLD_SIZE", "5", "5 and 5");  // below the rank
  check_bad(good, "LOCAL_WORLD_SIZE", "8", "too small");
  check_bad(good, "GROUP_WORLD_SIZE", "6", "too small");
  check_bad(test::torchrun_environment(0, 1, 4), "LOCAL_WORLD_SIZE", "2", "2 and 4");
  check_bad(good, "MASTER_PORT", "0", "it is 0");
  check_bad(good, "MASTER_PORT", "65536", "it is 65536");
  CHECK_THAT(error_of(with(good, "RANK", "8")), ContainsSubstring("torchrun --no-python"));
}

TEST_CASE("slurm: the place of a task") {
  const ProcessPlace place = place_of(test::slurm_environment(11, 2, 8));
  check_numbers(place, 11, 16, 3, 8, 1, 2);
  CHECK(place.main_address == "gpu007");
  CHECK(place.main_port == 19321);
  CHECK_FALSE(place.store_is_hosted);
  Environment environment = test::slurm_environment(11, 2, 8);
  environment.insert({{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "4567"}});
  CHECK(place_of(environment).main_address == "10.1.2.3");
  CHECK(place_of(environment).main_port == 4567);
  CHECK(place_of(with(test::slurm_environment(0, 2, 8), "SLURM_JOB_ID", "42")).main_port == 15042);
  // One node needs no name.
  CHECK(place_of(test::slurm_environment(1, 1, 2)).main_address == "127.0.0.1");
}

TEST_CASE("slurm: a step of a larger job, and what older versions leave out") {
  Environment environment = test::slurm_environment(3, 2, 2);
  environment["SLURM_NTASKS"] = "64";
  environment["SLURM_NNODES"] = "16";
  environment["SLURM_NODELIST"] = "other[1-16]";
  environment["SLURM_TASKS_PER_NODE"] = "4(x16)";
  check_numbers(place_of(environment), 3, 4, 1, 2, 1, 2);
  CHECK(place_of(environment).main_address == "gpu007");

  environment = test::slurm_environment(3, 2, 2);
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NODELIST",
                           "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    environment.erase(name);
  environment["SLURM_NTASKS_PER_NODE"] = "2";
  check_numbers(place_of(environment), 3, 4, 1, 2, 1, 2);
  CHECK_THAT(error_of(with(environment, "SLURM_NTASKS_PER_NODE", nullptr)),
             ContainsSubstring("SLURM_STEP_TASKS_PER_NODE is not set"));
}

TEST_CASE("slurm: nodes with different numbers of tasks") {
  // Three nodes with 8, 4 and 4 tasks.
  Environment environment = test::slurm_environment(0, 3, 8);
  for (const char* name : {"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"}) environment[name] = "16";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "8,4(x2)";
  const auto task = [&](const char* rank, const char* local, const char* node) {
    return with(with(with(environment, "SLURM_PROCID", rank), "SLURM_LOCALID", local), "SLURM_NODEID", node);
  };
  check_numbers(place_of(task("7", "7", "0")), 7, 16, 7, 8, 0, 3);
  check_numbers(place_of(task("8", "0", "1")), 8, 16, 0, 4, 1, 3);
  check_numbers(place_of(task("15", "3", "2")), 15, 16, 3, 4, 2, 3);
  // srun -m cyclic deals ranks out in turn.
  check_numbers(place_of(task("4", "1", "1")), 4, 16, 1, 4, 1, 3);
  check_bad(task("15", "4", "2"), "SLURM_STEP_TASKS_PER_NODE", "8,4(x2)", "4 and 4");
}

TEST_CASE("slurm: shells and batch scripts are not tasks") {
  const Environment task = test::slurm_environment(0, 1, 1), tasks = test::slurm_environment(1, 1, 4);
  CHECK(detect_cluster_environment(task) != std::nullopt);
  for (const char* name : {"bash", "interactive"}) {
    INFO(name);
    CHECK(detect_cluster_environment(with(task, "SLURM_JOB_NAME", name)) == std::nullopt);
    // srun in a shell of salloc: the name is inherited, but these are tasks.
    CHECK(place_of(with(tasks, "SLURM_JOB_NAME", name)).rank == 1);
    CHECK(detect_cluster_environment(with(with(tasks, "SLURM_JOB_NAME", name), "SLURM_PTY_PORT", "4711")) ==
          std::nullopt);
    CHECK(place_of(with(task, "SLURM_JOB_NAME", name), "slurm").environment == "slurm");
  }
  // sbatch: SLURM_PROCID without a step. salloc: not even that.
  CHECK(detect_cluster_environment(with(tasks, "SLURM_STEP_ID", nullptr)) == std::nullopt);
  CHECK(detect_cluster_environment(with(tasks, "SLURM_PROCID", nullptr)) == std::nullopt);
}

TEST_CASE("slurm: each wrong value is named") {
  const Environment good = test::slurm_environment(11, 2, 8);
  check_bad(good, "SLURM_LOCALID", nullptr, "is not set");
  check_bad(good, "SLURM_NODEID", nullptr, "is not set");
  check_bad(good, "SLURM_JOB_ID", nullptr, "is not set");
  check_bad(good, "SLURM_JOB_ID", "7_1", "it is '7_1'");
  for (const std::string name :
       {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"}) {
    check_bad(good, name, "x1", "it is 'x1'");
    check_bad(good, name, "-1", "it is -1");
  }
  check_bad(good, "SLURM_PROCID", "16", "16 and 16");
  check_bad(good, "SLURM_LOCALID", "8", "8 and 8");
  check_bad(good, "SLURM_NODEID", "2", "2 and 2");
  check_bad(good, "SLURM_STEP_NUM_TASKS", "12", "16 tasks on 2 nodes");
  check_bad(good, "SLURM_STEP_NUM_NODES", "3", "is 3, but SLURM_STEP_NODELIST 'gpu[007-008]' has 2");
  for (const char* bad : {"8", "8(x3)", "8,8,8", "8(x2", "8(2)", "(x2)", "8,", "x"})
    check_bad(good, "SLURM_STEP_TASKS_PER_NODE", bad, cat("'", bad, "'"));
  check_bad(good, "SLURM_STEP_TASKS_PER_NODE", "8,4", "makes 12 tasks");
  CHECK_THAT(error_of(with(good, "SLURM_STEP_NODELIST", "gpu[7-")), ContainsSubstring("'gpu[7-'"));
  Environment lost = good;
  lost.erase("SLURM_STEP_NODELIST");
  CHECK_THAT(error_of(with(lost, "SLURM_NODELIST", nullptr)),
             ContainsSubstring("SLURM_STEP_NODELIST and MASTER_ADDR are not set"));
  check_bad(good, "MASTER_PORT", "70000", "it is 70000");
}

TEST_CASE("mpi: Open MPI") {
  const ProcessPlace place = place_of(open_mpi_environment(1, 2, 1, 2));
  CHECK(place.environment == "mpi");
  check_numbers(place, 1, 2, 1, 2, 0, 1);
  CHECK(place.main_address == "127.0.0.1");
  CHECK(place.main_port >= 20000);
  CHECK(place.main_port <= 29999);
  // The same on all ranks, another for another job.
  CHECK(place.main_port == place_of(open_mpi_environment(0, 2, 0, 2)).main_port);
  CHECK(place.main_port != place_of(with(open_mpi_environment(0, 2, 0, 2), "PMIX_NAMESPACE", "101253122")).main_port);
  CHECK(place_of(with(open_mpi_environment(0, 2, 0, 2), "MASTER_PORT", "4567")).main_port == 4567);

  Environment two_nodes = with(open_mpi_environment(5, 8, 1, 4), "MASTER_ADDR", "host-a");
  check_numbers(place_of(two_nodes), 5, 8, 1, 4, 1, 2);
  CHECK(place_of(two_nodes).main_address == "host-a");
  // --map-by node: ranks 0, 2, 4, … on the first.
  check_numbers(place_of(with(open_mpi_environment(5, 8, 2, 4), "MASTER_ADDR", "host-a")), 5, 8, 2, 4, 1, 2);
}

TEST_CASE("mpi: nodes may have different numbers of processes, which are distinguished when the ranks meet") {
  // Nodes of 4, 2 and 2; what a rank is given about its own node is right at once.
  const auto place = [](int64_t rank, int64_t local, int64_t local_world) {
    return place_of(with(open_mpi_environment(rank, 8, local, local_world), "MASTER_ADDR", "host-a"));
  };
  for (const auto& [rank, local, local_world] : {std::array<int64_t, 3>{3, 3, 4}, {4, 0, 2}, {7, 1, 2}, {6, 2, 4}}) {
    CAPTURE(rank);
    const ProcessPlace found = place(rank, local, local_world);
    CHECK(found.rank == rank);
    CHECK(found.world_size == 8);
    CHECK(found.local_rank == local);
    CHECK(found.local_world_size == local_world);
    CHECK(found.num_nodes > 1);
  }
  check_numbers(place_of(with(open_mpi_environment(3, 5, 0, 2), "MASTER_ADDR", "host-a")), 3, 5, 0, 2, 0, 3);
  check_bad(open_mpi_environment(3, 5, 0, 2), "MASTER_ADDR", nullptr, "MASTER_ADDR is not set");
}

TEST_CASE("mpi: MPICH and Intel MPI") {
  const Environment environment{{"PMI_RANK", "1"},
                                {"PMI_SIZE", "2"},
                                {"MPI_LOCALRANKID", "1"},
                                {"MPI_LOCALNRANKS", "2"},
                                {"MASTER_PORT", "29500"}};
  check_numbers(place_of(environment), 1, 2, 1, 2, 0, 1);
  check_bad(environment, "MPI_LOCALRANKID", nullptr, "is not set");
  check_bad(environment, "MASTER_PORT", nullptr, "-genv MASTER_PORT");
  // An interactive shell of srun --mpi=pmi2.
  CHECK(detect_cluster_environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}) == std::nullopt);
}

TEST_CASE("mpi: each wrong value is named") {
  const Environment good = with(open_mpi_environment(5, 8, 1, 4), "MASTER_ADDR", "host-a");
  check_bad(good, "MASTER_ADDR", nullptr, "mpirun -x MASTER_ADDR");
  check_bad(good, "OMPI_COMM_WORLD_RANK", nullptr, "is not set");
  check_bad(good, "OMPI_COMM_WORLD_RANK", "8", "8 and 8");
  check_bad(good, "OMPI_COMM_WORLD_LOCAL_RANK", "4", "4 and 4");
  check_bad(good, "OMPI_COMM_WORLD_LOCAL_SIZE", "9", "is too small");
  check_bad(good, "OMPI_COMM_WORLD_RANK", "0", "cannot be above");
  check_bad(good, "OMPI_COMM_WORLD_LOCAL_SIZE", "many", "it is 'many'");
}

TEST_CASE("variables: what is not said follows from the rest") {
  ProcessPlace place = place_of(plain_variables());
  CHECK(place.environment == "variables");
  // One process on each node, as Kubernetes' operators start them.
  check_numbers(place, 1, 4, 0, 1, 1, 4);
  CHECK(place.main_address == "10.0.0.1");
  CHECK(place.main_port == 29500);
  CHECK_FALSE(place.store_is_hosted);
  // A loopback address: all are on this node.
  for (const char* address : {"127.0.0.1", "localhost", "::1"})
    check_numbers(place_of(with(plain_variables(), "MASTER_ADDR", address)), 1, 4, 1, 4, 0, 1);
  check_numbers(place_of(with(with(plain_variables(), "LOCAL_WORLD_SIZE", "2"), "RANK", "3")), 3, 4, 1, 2, 1, 2);
  Environment environment = plain_variables();
  environment.insert({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"NODE_RANK", "0"}});
  check_numbers(place_of(environment), 1, 4, 1, 2, 0, 2);
  check_numbers(place_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), 0, 1, 0, 1, 0, 1);
}

TEST_CASE("variables: each wrong value is named") {
  Environment good = plain_variables();
  good.insert({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"NODE_RANK", "0"}});
  for (const std::string name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    check_bad(good, name, nullptr, "is not set");
  for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_PORT"}) {
    check_bad(good, name, "0x1", "it is '0x1'");
    check_bad(good, name, "-3", "it is -3");
  }
  check_bad(good, "RANK", "4", "4 and 4");
  check_bad(good, "RANK", "3", "give 1; it is 3");
  check_bad(good, "WORLD_SIZE", "5", "5, 2 and 2");
  check_bad(good, "LOCAL_RANK", "2", "2 and 2");
  check_bad(good, "NODE_RANK", "2", "2 and 2");
  check_bad(with(good, "GROUP_RANK", "1"), "NODE_RANK", "0", "0 and 1");
  check_bad(with(good, "NODE_RANK", nullptr), "LOCAL_WORLD_SIZE", nullptr, "is not set");
  CHECK_THAT(error_of({{"WORLD_SIZE", "2"}}),
             ContainsSubstring("RANK is not set") && ContainsSubstring("cluster_environment: none"));
}

TEST_CASE("a launcher on each of several nodes needs to know which one it is on") {
  CHECK(detect_node({}, 1).main_port == 0);
  CHECK(detect_node({{"MASTER_PORT", "29500"}, {"MASTER_ADDR", "elsewhere"}}, 1).main_port == 29500);
  CHECK(detect_node({{"MASTER_ADDR", "elsewhere"}}, 1).main_address == "127.0.0.1");
  const Environment good{{"NODE_RANK", "1"}, {"MASTER_ADDR", "node001"}, {"MASTER_PORT", "29500"}};
  const NodePlace node = detect_node(good, 2);
  CHECK(node.node_rank == 1);
  CHECK(node.main_address == "node001");
  CHECK(node.main_port == 29500);
  for (const char* name : {"NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    const std::string message = test::message_of<DistributedError>([&] { detect_node(with(good, name, nullptr), 2); });
    CHECK_THAT(message, ContainsSubstring(cat(name, " is not set")) && ContainsSubstring("launcher on 2 nodes"));
  }
  CHECK_THAT(test::message_of<DistributedError>([&] { detect_node(with(good, "NODE_RANK", "2"), 2); }),
             ContainsSubstring("NODE_RANK must be below"));
}

TEST_CASE("the started processes must match the config") {
  const ProcessPlace place = place_of(test::slurm_environment(11, 2, 8));
  require_place(place, 8, 2);
  CHECK_THAT(test::message_of<DistributedError>([&] { require_place(place, 4, 2); }),
             ContainsSubstring("slurm started 8 processes") && ContainsSubstring("devices 4"));
  CHECK_THAT(test::message_of<DistributedError>([&] { require_place(place, 8, 1); }), ContainsSubstring("num_nodes 1"));
  const ProcessPlace alone = place_of(test::slurm_environment(0, 1, 1));
  CHECK_THAT(test::message_of<DistributedError>([&] { require_place(alone, 4, 1); }),
             ContainsSubstring("cluster_environment: launcher"));
}

}  // namespace cluster_environment_test
