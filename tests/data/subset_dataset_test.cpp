#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/subset_dataset.h"
#include "fulgur/data/tensor_dataset.h"
#include "support/expect_error.h"

namespace subset_dataset_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {
std::shared_ptr<const Dataset> numbers(int64_t count) {
  return std::make_shared<TensorDataset>(Batch({at::arange(count, at::kLong)}));
}
}  // namespace

TEST_CASE("a subset reads the samples that it names") {
  const SubsetDataset subset(numbers(10), {8, 2, 3, 4});
  REQUIRE(subset.size() == 4);
  Batch out({at::arange(2, at::kLong)});
  subset.read(std::vector<int64_t>{3, 0}, 0, out, {});
  CHECK(at::equal(out[0], at::tensor({4, 8}, at::kLong)));
}

TEST_CASE("a subset has views if its range is one of the source") {
  const SubsetDataset subset(numbers(10), {8, 2, 3, 4});
  CHECK_FALSE(subset.view(0, 2).has_value());
  REQUIRE(subset.view(1, 3).has_value());
  CHECK(at::equal((*subset.view(1, 3))[0], at::tensor({2, 3, 4}, at::kLong)));
}

TEST_CASE("a subset refuses indices outside its source and itself") {
  CHECK_THROWS_AS(SubsetDataset(numbers(3), {0, 3}), DataError);
  const SubsetDataset subset(numbers(3), {0, 2});
  Batch out({at::arange(1, at::kLong)});
  CHECK_THROWS_AS(subset.read(std::vector<int64_t>{2}, 0, out, {}), DataError);
}

TEST_CASE("a split is disjoint, whole and the same each time") {
  const auto parts = split_indices(100, {70, 20, 10}, 5);
  REQUIRE(parts.size() == 3);
  std::set<int64_t> seen;
  for (size_t i = 0; i < 3; ++i) {
    CHECK(parts[i].size() == std::vector<size_t>{70, 20, 10}[i]);
    CHECK(std::is_sorted(parts[i].begin(), parts[i].end()));
    seen.insert(parts[i].begin(), parts[i].end());
  }
  CHECK(seen.size() == 100);
  CHECK(parts == split_indices(100, {70, 20, 10}, 5));
  CHECK(parts != split_indices(100, {70, 20, 10}, 6));
  const auto datasets = split(numbers(100), {70, 20}, 5);
  REQUIRE(datasets.size() == 2);
  CHECK(datasets[1]->indices() == parts[1]);
}

TEST_CASE("a split of more than there is names both numbers") {
  CHECK_THAT(test::message_of<ConfigError>([] {
               split_indices(10, {8, 3}, 0);
             }),
             ContainsSubstring("10 samples") && ContainsSubstring("3 with 2 left"));
  CHECK_THROWS_AS(split_indices(10, {-1}, 0), ConfigError);
}

}  // namespace subset_dataset_test
