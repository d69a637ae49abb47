#include "fulgur/callbacks/batch_size_search.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace batch_size_search_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

struct Found {
  std::vector<int64_t> tried;
  std::optional<int64_t> greatest, suggestion;
  std::string reason;
};

/// Searches on a device that holds `memory` samples, with data of `samples` samples.
Found search(BatchSizeSearch::Options options, int64_t memory, int64_t samples = kAny) {
  BatchSizeSearch search(options);
  Found found;
  while (const auto size = search.next()) {
    found.tried.push_back(*size);
    search.note(*size > samples  ? BatchTrial::no_such_batch
                : *size > memory ? BatchTrial::out_of_memory
                                 : BatchTrial::fits);
  }
  found.greatest = search.greatest();
  found.suggestion = search.suggestion();
  found.reason = search.end_reason();
  CHECK(search.trials() == static_cast<int64_t>(found.tried.size()));
  return found;
}

using Sizes = std::vector<int64_t>;

}  // namespace

TEST_CASE("BatchSizeSearch: power doubles until a batch does not fit") {
  const Found found = search({}, 100);
  CHECK(found.tried == Sizes{2, 4, 8, 16, 32, 64, 128});
  CHECK(found.greatest == 64);
  CHECK(found.suggestion == 64);
  CHECK_THAT(found.reason, ContainsSubstring("128 does not fit into memory"));
}

TEST_CASE("BatchSizeSearch: binsearch finds the greatest size that fits, and leaves a margin") {
  const Found found = search({.mode = BatchSizeMode::binsearch}, 100);
  CHECK(found.tried == Sizes{2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 102, 101});
  CHECK(found.greatest == 100);
  CHECK(found.suggestion == 95);
  for (const int64_t memory : {1, 2, 3, 63, 64, 65, 1000}) {
    INFO(memory);
    CHECK(search({.mode = BatchSizeMode::binsearch, .margin = 0}, memory).suggestion == memory);
  }
  CHECK(search({.mode = BatchSizeMode::binsearch, .margin = 0.9}, 1).suggestion == 1);
}

TEST_CASE("BatchSizeSearch: a first size that does not fit is halved until it does, or nothing fits") {
  CHECK(search({.init = 64}, 20).tried == Sizes{64, 32, 16});
  CHECK(search({.init = 64}, 20).greatest == 16);
  CHECK(search({.mode = BatchSizeMode::binsearch, .init = 64, .margin = 0}, 20).suggestion == 20);
  const Found nothing = search({.init = 4}, 0);
  CHECK(nothing.tried == Sizes{4, 2, 1});
  CHECK_FALSE(nothing.greatest);
  CHECK_FALSE(nothing.suggestion);
  CHECK_THAT(nothing.reason, ContainsSubstring("not even one sample fits"));
}

TEST_CASE("BatchSizeSearch: without a limit of memory it ends at the size of the data, or at max_trials") {
  const Found data = search({}, kAny, 50);
  CHECK(data.tried == Sizes{2, 4, 8, 16, 32, 64});
  CHECK(data.greatest == 32);
  CHECK_THAT(data.reason, ContainsSubstring("the data has no batch of 64 samples"));
  // Data needs no margin.
  CHECK(search({.mode = BatchSizeMode::binsearch, .max_trials = 100}, kAny, 50).suggestion == 50);
  const Found trials = search({.max_trials = 3}, kAny);
  CHECK(trials.tried == Sizes{2, 4, 8});
  CHECK(trials.greatest == 8);
  CHECK_THAT(trials.reason, ContainsSubstring("max_trials (3) is reached"));
  const Found none = search({.init = 64, .max_trials = 2}, 1);
  CHECK_FALSE(none.greatest);
  CHECK_THAT(none.reason, ContainsSubstring("no batch has fitted"));
}

TEST_CASE("BatchSizeSearch: options out of their range") {
  const auto refused = [](BatchSizeSearch::Options options) {
    return message_of<ConfigError>([&] { BatchSizeSearch{options}; });
  };
  CHECK_THAT(refused({.init = 0}), ContainsSubstring("init must be at least 1; got 0"));
  CHECK_THAT(refused({.max_trials = 0}), ContainsSubstring("max_trials must be at least 1; got 0"));
  CHECK_THAT(refused({.margin = 1}), ContainsSubstring("margin") && ContainsSubstring("got 1.0"));
}

}  // namespace batch_size_search_test
