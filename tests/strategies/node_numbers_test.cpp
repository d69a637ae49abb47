#include "distributed/node_ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace node_numbers_test {

using namespace fulgur;
using namespace fulgur::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Layout {
  std::vector<int64_t> sizes;  ///< of each node
  std::vector<size_t> node_of_rank;
};

std::vector<std::string> words_of(const Layout& layout) {
  std::vector<int64_t> met(layout.sizes.size(), 0);
  std::vector<std::string> words;
  for (const size_t node : layout.node_of_rank) {
    ProcessPlace place;
    place.local_rank = met[node]++;
    place.local_world_size = layout.sizes[node];
    words.push_back(node_identity("gpu node " + std::to_string(9 - node), place));  // names say nothing of the order
  }
  return words;
}

void check(const Layout& layout) {
  const auto words = words_of(layout);
  for (size_t rank = 0; rank < words.size(); ++rank) {
    ProcessPlace place;
    place.rank = static_cast<int64_t>(rank);
    place.local_rank = 7;
    place = number_nodes(place, words);
    CHECK(place.num_nodes == static_cast<int64_t>(layout.sizes.size()));
    CHECK(place.node_rank == static_cast<int64_t>(layout.node_of_rank[rank]));
    CHECK(place.local_rank == 7);  // as it was given
  }
}

std::string error_of(const std::vector<std::string>& words) {
  return test::message_of<DistributedError>([&] { number_nodes({}, words); });
}

}  // namespace

TEST_CASE("nodes are numbered by their first rank, whatever their sizes and the order of ranks") {
  check({{4, 2, 2}, {0, 0, 0, 0, 1, 1, 2, 2}});
  check({{2, 4, 2}, {0, 0, 1, 1, 1, 1, 2, 2}});
  check({{4, 2, 2}, {0, 1, 2, 0, 1, 2, 0, 0}});  // in turn
  check({{1, 3}, {0, 1, 1, 1}});
  check({{3}, {0, 0, 0}});
  check({{2, 2}, {0, 1, 1, 0}});  // by a rankfile
}

TEST_CASE("ranks that cannot share a node are refused with what they were given") {
  // Two machines with one name.
  const std::string twice = error_of({"0 1 localhost", "0 1 localhost"});
  CHECK_THAT(twice, ContainsSubstring("2 ranks run on 'localhost', and rank 0 was given local rank 0 of 1") &&
                        ContainsSubstring("hostname"));
  CHECK_THAT(error_of({"0 2 a", "0 2 a"}), ContainsSubstring("rank 1 was given local rank 0 of 2"));
  CHECK_THAT(error_of({"0 2 a", "2 2 a"}), ContainsSubstring("rank 1 was given local rank 2 of 2"));
  CHECK_THAT(error_of({"0 3 a", "1 3 a", "0 1 b"}),
             ContainsSubstring("2 ranks run on 'a', and rank 0 was given local rank 0 of 3"));
}

}  // namespace node_numbers_test
