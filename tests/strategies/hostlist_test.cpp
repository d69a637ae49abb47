#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/strategies/cluster_environment.h"
#include "support/expect_error.h"

namespace hostlist_test {

using fulgur::expand_hostlist;
using Hosts = std::vector<std::string>;

TEST_CASE("lists of hosts are expanded as Slurm writes them") {
  CHECK(expand_hostlist("vm") == Hosts{"vm"});
  CHECK(expand_hostlist("a,b-2,c.example.org") == Hosts{"a", "b-2", "c.example.org"});
  CHECK(expand_hostlist("node[001-003,020],gpu-a3") == Hosts{"node001", "node002", "node003", "node020", "gpu-a3"});
  CHECK(expand_hostlist("n[9-11]") == Hosts{"n9", "n10", "n11"});
  CHECK(expand_hostlist("n[09-11]") == Hosts{"n09", "n10", "n11"});
  CHECK(expand_hostlist("n[099-101]") == Hosts{"n099", "n100", "n101"});
  CHECK(expand_hostlist("rack[1-2]n[08-09]-ib,x") ==
        Hosts{"rack1n08-ib", "rack1n09-ib", "rack2n08-ib", "rack2n09-ib", "x"});
  CHECK(expand_hostlist("n[7]") == Hosts{"n7"});
  const Hosts many = expand_hostlist("node[0001-1024]");
  CHECK(many.size() == 1024);
  CHECK(many.back() == "node1024");
}

TEST_CASE("what is not a list of hosts is an error") {
  const std::string list =
      GENERATE("", ",", "a,", "n[1-3", "n1-3]", "n[]", "n[1-]", "n[-3]", "n[3-1]", "n[a-b]", "n[1,,2]", "n[[1]]",
               "n[1 - 2]", "n[0-999999999]", "n[1-1048576]m[1-2]", "n[0000000001-2]");
  INFO(list);
  const std::string message = fulgur::test::message_of<fulgur::DistributedError>([&] { expand_hostlist(list); });
  CHECK(message.find("[strategies.expand_hostlist]") == 0);
  CHECK(message.find("'" + list + "'") != std::string::npos);
}

}  // namespace hostlist_test
