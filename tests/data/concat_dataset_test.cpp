#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/concat_dataset.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/subset_dataset.h"
#include "support/expect_error.h"

namespace concat_dataset_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("datasets one after the other read as one") {
  const auto tail = std::make_shared<SubsetDataset>(numbers(20), std::vector<int64_t>{19, 18, 17});
  const auto all = std::make_shared<ConcatDataset>(
      std::vector<std::shared_ptr<const Dataset>>{numbers(4), numbers(0), tail, numbers(2)});
  CHECK(all->size() == 9);
  for (const int64_t workers : {0, 2}) {
    DataLoader loader(all, {.batch_size = 4, .num_workers = workers});
    CHECK(epoch_of(loader, 0) == std::vector<int64_t>{0, 1, 2, 3, 19, 18, 17, 0, 1});
    DataLoader shuffled(all, {.batch_size = 9, .shuffle = true, .num_workers = workers});
    auto seen = epoch_of(shuffled, 0);
    std::sort(seen.begin(), seen.end());
    CHECK(seen == std::vector<int64_t>{0, 0, 1, 1, 2, 3, 17, 18, 19});
  }
  CHECK(all->view(0, 4).has_value());
  CHECK_FALSE(all->view(3, 2).has_value());
  CHECK_THROWS_AS(all->view(6, 4), DataError);
  Batch out({at::arange(1)});
  CHECK_THROWS_AS(all->read(std::vector<int64_t>{9}, 0, out, {}), DataError);
}

TEST_CASE("parts of a concatenation must be of the same kind") {
  const auto other = std::make_shared<TensorDataset>(Batch({Batch::Entry{"x", at::zeros({3, 2})}}));
  CHECK_THAT(message_of<DataError>([&] {
               ConcatDataset({numbers(4), other});
             }),
             ContainsSubstring("part 1 has x Float [2]") && ContainsSubstring("x Long []"));
  CHECK_THROWS_AS(ConcatDataset({}), DataError);
}

TEST_CASE("a random split by shares gives every sample to one part") {
  const auto parts = random_split(numbers(11), {0.7, 0.2, 0.1}, 3);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0]->size() == 8);  // 7.7, 2.2 and 1.1 rounded down, the one left over to the first
  CHECK(parts[1]->size() == 2);
  CHECK(parts[2]->size() == 1);
  std::vector<int64_t> seen;
  for (const auto& part : parts) seen.insert(seen.end(), part->indices().begin(), part->indices().end());
  std::sort(seen.begin(), seen.end());
  std::vector<int64_t> all(11);
  std::iota(all.begin(), all.end(), int64_t{0});
  CHECK(seen == all);
  CHECK_THAT(message_of<ConfigError>([] { random_split(numbers(4), {0.5, 0.4}, 0); }), ContainsSubstring("got 0.9"));
  CHECK_THROWS_AS(random_split(numbers(4), {1.5, -0.5}, 0), ConfigError);
}

}  // namespace concat_dataset_test
