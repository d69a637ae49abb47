#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/strategies/ddp.h"
#include "support/expect_error.h"

namespace added_environment_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Reads RANK_OF_TEST, SIZE_OF_TEST and PORT_OF_TEST.
class TestScheduler final : public ClusterEnvironment {
 public:
  std::optional<ProcessPlace> detect(const Environment& environment) const override {
    const auto rank = environment.find("RANK_OF_TEST");
    if (rank == environment.end()) return std::nullopt;
    ProcessPlace place;
    place.rank = place.node_rank = std::stoll(rank->second);
    place.world_size = place.num_nodes = std::stoll(environment.at("SIZE_OF_TEST"));
    place.main_port = std::stoll(environment.at("PORT_OF_TEST"));
    return place;
  }
};
FULGUR_REGISTER(ClusterEnvironment, TestScheduler, "A scheduler of the tests.");

Environment place_in_test(const std::string& rank, const std::string& size, const std::string& port = "29500") {
  return {{"RANK_OF_TEST", rank}, {"SIZE_OF_TEST", size}, {"PORT_OF_TEST", port}};
}

}  // namespace

TEST_CASE("an added cluster environment finds the place, by its name and by auto") {
  for (const std::string wanted : {"TestScheduler", "auto"}) {
    CAPTURE(wanted);
    const auto place = detect_cluster_environment(place_in_test("2", "4"), wanted);
    REQUIRE(place);
    CHECK(place->environment == "TestScheduler");
    CHECK(place->rank == 2);
    CHECK(place->world_size == 4);
    CHECK(place->main_port == 29500);
  }
  // Before the built-in ones, but not for processes of the launcher.
  Environment both = place_in_test("2", "4");
  both.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  CHECK(detect_cluster_environment(both)->rank == 2);
  CHECK(detect_cluster_environment(both, "variables")->rank == 0);
  CHECK(detect_cluster_environment(both, "none") == std::nullopt);
  CHECK(detect_cluster_environment({}) == std::nullopt);
  both.insert({{"FULGUR_LAUNCHER", "1"},
               {"LOCAL_RANK", "0"},
               {"LOCAL_WORLD_SIZE", "2"},
               {"GROUP_RANK", "0"},
               {"GROUP_WORLD_SIZE", "1"}});
  CHECK(detect_cluster_environment(both)->environment == "launcher");
}

TEST_CASE("an added cluster environment is named in options and errors") {
  CHECK(cluster_environment_names().back() == "TestScheduler");
  const auto error = [](const Environment& environment) {
    return test::message_of<DistributedError>([&] { detect_cluster_environment(environment, "TestScheduler"); });
  };
  CHECK_THAT(error({}), ContainsSubstring("is TestScheduler, which does not recognise this process"));
  CHECK_THAT(error(place_in_test("4", "4")), ContainsSubstring("the rank is not below the world size"));
  CHECK_THAT(error(place_in_test("-1", "4")), ContainsSubstring("it is rank -1 of 4"));
  CHECK_THAT(error(place_in_test("1", "4", "0")), ContainsSubstring("the port at which the ranks meet is 0"));
  CHECK_THAT(test::message_of<ConfigError>([] { detect_cluster_environment({}, "TestSchedulr"); }),
             ContainsSubstring("did you mean 'TestScheduler'"));
  Spec<Strategy> spec;
  Problems problems;
  const auto ddp = [](const char* environment) {
    return ConfigNode::map(
        {{"class_path", ConfigNode::string("ddp")},
         {"init_args", ConfigNode::map({{"cluster_environment", ConfigNode::string(environment)}})}});
  };
  spec.read(ddp("TestScheduler"), problems, "strategy");
  CHECK(problems.empty());
  spec.read(ddp("OtherScheduler"), problems, "strategy");
  CHECK(!problems.empty());
}

}  // namespace added_environment_test
