// Two launchers on one machine, as if on two nodes.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>

#include "fulgur/core/text/errors.h"
#include "launching.h"
#include "network_namespaces.h"
#include "support/expect_error.h"

namespace launcher_nodes_test {

namespace {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using test::Launching;

/// Two nodes of two processes; both write into one folder.
class TwoNodes : public Launching {
 public:
  TwoNodes() : Launching(2) {
    options.num_nodes = 2;
    options.main_port = test::free_port();
    options.start_timeout_s = 20;
  }
  pid_t start(int64_t node, const std::vector<std::string>& actions) {
    options.node_rank = node;
    return run_apart(actions, cat(".", node));
  }
};

}  // namespace

TEST_CASE("launcher on two nodes: four ranks, one store, ends in order") {
  TwoNodes nodes;
  // The second node first: it waits.
  const pid_t second = nodes.start(1, {"wait=end"}), first = nodes.start(0, {"wait=end"});
  REQUIRE(nodes.wait_for_start(4));
  for (int64_t rank = 0; rank < 4; ++rank) {
    const ProcessPlace place = detect_cluster_environment(nodes.environment_of(rank)).value();
    CHECK(place.rank == rank);
    CHECK(place.world_size == 4);
    CHECK(place.local_rank == rank % 2);
    CHECK(place.node_rank == rank / 2);
    CHECK(place.num_nodes == 2);
    CHECK(place.main_port == nodes.options.main_port);
  }
  test::write_text(nodes / "end", "");
  CHECK(test::code_of(first) == 0);
  CHECK(test::code_of(second) == 0);
}

TEST_CASE("launcher on two nodes: a failure on one ends both") {
  TwoNodes nodes;
  const std::vector<std::string> actions{"when=3", "wait=fail", "say=broken", "exit=3", "when=0",
                                         "hang",   "when=1",    "hang",       "when=2", "hang"};
  const pid_t first = nodes.start(0, actions), second = nodes.start(1, actions);
  REQUIRE(nodes.wait_for_start(4));
  test::write_text(nodes / "fail", "");
  CHECK(test::code_of(second) == 3);
  CHECK(test::code_of(first) == 5);
  CHECK_THAT(nodes.report_of(".1"), ContainsSubstring("rank 3 of 4 exited with code 3: broken"));
  CHECK_THAT(nodes.report_of(".0"), ContainsSubstring("another node failed: rank 3 of 4 exited with code 3: broken"));
  for (int64_t rank = 0; rank < 4; ++rank) CHECK(test::is_gone(nodes.pid_of(rank)));
}

TEST_CASE("launcher on two nodes: both restart together") {
  TwoNodes nodes;
  nodes.options.max_restarts = 2;
  // The whole world fails once on each node.
  const std::vector<std::string> actions{"when=3@0", "kill=9",   "when=0@0", "hang",     "when=1@0",
                                         "exit=5",   "when=0@1", "exit=3",   "when=2@1", "hang"};
  const pid_t first = nodes.start(0, actions), second = nodes.start(1, actions);
  CHECK(test::code_of(first) == 0);
  CHECK(test::code_of(second) == 0);
  CHECK(nodes.report_of(".0") == "restarts=2\n");
  CHECK(nodes.report_of(".1") == "restarts=2\n");
  for (int64_t rank = 0; rank < 4; ++rank) CHECK(nodes.environment_of(rank, 2).at("FULGUR_RESTARTS") == "2");
}

TEST_CASE("launcher on two nodes: the number of restarts is limited on both") {
  TwoNodes nodes;
  nodes.options.max_restarts = 1;
  const std::vector<std::string> actions{"when=2", "exit=1"};
  const pid_t first = nodes.start(0, actions), second = nodes.start(1, actions);
  CHECK(test::code_of(first) == 5);
  CHECK(test::code_of(second) == 1);
  CHECK_THAT(nodes.report_of(".0"),
             StartsWith("restarts=1\n") && ContainsSubstring("restarted 1 time (max_restarts 1)"));
  CHECK_THAT(nodes.report_of(".1"), StartsWith("restarts=1\n") && ContainsSubstring("rank 2 of 4 exited with code 1"));
}

TEST_CASE("launcher on two nodes: mismatched options are an error on both") {
  TwoNodes nodes;
  const pid_t first = nodes.start(0, {"hang"});
  SECTION("another number of processes") {
    nodes.options.processes = 3;
    const pid_t second = nodes.start(1, {"hang"});
    CHECK(test::code_of(second) == 112);
    CHECK_THAT(nodes.report_of(".1"), ContainsSubstring("all nodes must be started with the same options") &&
                                          ContainsSubstring("2 nodes with 3 processes") &&
                                          ContainsSubstring("2 nodes with 2 processes"));
    CHECK(test::code_of(first) == 5);
    CHECK_THAT(nodes.report_of(".0"), ContainsSubstring("all nodes must be started with the same options"));
  }
  SECTION("the same node twice") {
    const pid_t second = nodes.start(1, {"hang"});
    REQUIRE(nodes.wait_for_start(4));
    nodes.options.node_rank = 1;
    const pid_t third = nodes.run_apart({"hang"}, ".twice");
    CHECK(test::code_of(third) == 112);
    CHECK_THAT(nodes.report_of(".twice"), ContainsSubstring("1 is used twice"));
    CHECK(test::code_of(first) == 5);
    CHECK(test::code_of(second) == 5);
  }
}

TEST_CASE("launcher on two nodes: a node 0 that cannot be found gets a distinct error") {
  Launching launching(2);
  launching.options.num_nodes = 2;
  launching.options.node_rank = 1;
  launching.options.main_port = test::free_port();
  launching.options.start_timeout_s = 0.5;
  SECTION("its name") {
    launching.options.main_address = "nowhere.invalid";
    launching.options.start_timeout_s = 5;
    const std::string message = test::message_of<DistributedError>([&] { launching.run({}); });
    CHECK_THAT(message, ContainsSubstring("'nowhere.invalid'"));
    CHECK_THAT(message, ContainsSubstring("MASTER_ADDR"));
  }
  SECTION("its port") {
    const std::string message = test::message_of<DistributedError>([&] { launching.run({}); });
    CHECK_THAT(message,
               ContainsSubstring(cat("nothing listens on port ", launching.options.main_port, " of '127.0.0.1'")) &&
                   ContainsSubstring("Connection refused"));
  }
  CHECK_FALSE(launching.has("started.2.0"));
}

TEST_CASE("launcher on two nodes: the launcher of node 0 is killed") {
  TwoNodes nodes;
  const bool peers_notice = GENERATE(true, false);
  if (peers_notice) nodes.options.grace_s = 20;
  const std::vector<std::string> actions{"when=0",    "hang",   "when=1", "hang",      "when=2",
                                         "wait=lost", "exit=5", "when=3", "wait=lost", "exit=5"};
  const pid_t first = nodes.start(0, actions), second = nodes.start(1, actions);
  REQUIRE(nodes.wait_for_start(4));
  ::kill(first, SIGKILL);
  CHECK(test::code_of(first) == -SIGKILL);
  for (int64_t rank = 0; rank < 2; ++rank)
    CHECK(test::comes_true([&] { return test::is_gone(nodes.pid_of(rank)); }, 2));
  if (peers_notice) test::write_text(nodes / "lost", "");
  CHECK(test::code_of(second) == 5);
  CHECK_THAT(nodes.report_of(".1"), ContainsSubstring("he launcher of node 0 has ended"));
  for (int64_t rank = 2; rank < 4; ++rank) CHECK(test::is_gone(nodes.pid_of(rank)));
}

TEST_CASE("launcher on two nodes: a node that cannot start its processes ends the other") {
  TwoNodes nodes;
  const pid_t first = nodes.start(0, {"hang"});
  REQUIRE(nodes.wait_for_start(2));
  nodes.options.program = nodes / "missing";
  const pid_t second = nodes.start(1, {"hang"});
  CHECK(test::code_of(second) == 112);
  CHECK(test::code_of(first) == 5);
  CHECK_THAT(nodes.report_of(".0"), ContainsSubstring("another node failed") && ContainsSubstring("No such file"));
}

TEST_CASE("launcher on two nodes in separate networks") {
  const test::TwoNetworks networks;
  if (!networks.ready()) SKIP("no network namespaces can be made here (root and iproute2 are needed)");
  TwoNodes nodes;
  nodes.options.main_address = test::TwoNetworks::address(0);
  nodes.options.max_restarts = 1;
  const auto start = [&](int node, const std::vector<std::string>& actions) {
    nodes.options.node_rank = node;
    return nodes.run_apart(actions, cat(".", node), [&] {
      if (!networks.enter(node)) throw std::runtime_error("no such network");
    });
  };
  SECTION("they connect, and restart together") {
    const std::vector<std::string> actions{"when=2@0", "kill=9", "when=0@0", "hang"};
    const pid_t second = start(1, actions), first = start(0, actions);
    CHECK(test::code_of(first) == 0);
    CHECK(test::code_of(second) == 0);
    CHECK(nodes.report_of(".0") == "restarts=1\n");
    CHECK(nodes.report_of(".1") == "restarts=1\n");
    CHECK(nodes.environment_of(3, 1).at("MASTER_ADDR") == test::TwoNetworks::address(0));
  }
  SECTION("an unplugged cable is reported") {
    REQUIRE(networks.plug(false));
    nodes.options.start_timeout_s = 1;
    const pid_t second = start(1, {});
    CHECK(test::code_of(second) == 112);
    CHECK_THAT(nodes.report_of(".1"),
               ContainsSubstring(cat("nothing listens on port ", nodes.options.main_port, " of '10.213.77.1'")));
  }
}

}  // namespace launcher_nodes_test
