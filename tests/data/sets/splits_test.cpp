#include "fulgur/data/splits.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/tensor_dataset.h"
#include "support/expect_error.h"

namespace splits_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

/// 60 of label 0, 30 of label 1, 10 of label 2, in turns.
std::vector<int64_t> uneven_labels() {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 100; ++i) labels.push_back(i % 10 < 6 ? 0 : i % 10 < 9 ? 1 : 2);
  return labels;
}

std::map<int64_t, int64_t> counts(const std::vector<int64_t>& part, const std::vector<int64_t>& labels) {
  std::map<int64_t, int64_t> found;
  for (const int64_t index : part) ++found[labels[static_cast<size_t>(index)]];
  return found;
}

}  // namespace

TEST_CASE("a stratified split is disjoint, whole, the same each time, and has each label in its share") {
  const auto labels = uneven_labels();
  const auto parts = stratified_split_indices(labels, {70, 20, 10}, 3);
  REQUIRE(parts.size() == 3);
  CHECK(counts(parts[0], labels) == std::map<int64_t, int64_t>{{0, 42}, {1, 21}, {2, 7}});
  CHECK(counts(parts[1], labels) == std::map<int64_t, int64_t>{{0, 12}, {1, 6}, {2, 2}});
  CHECK(counts(parts[2], labels) == std::map<int64_t, int64_t>{{0, 6}, {1, 3}, {2, 1}});
  std::set<int64_t> seen;
  for (const auto& part : parts) {
    CHECK(std::is_sorted(part.begin(), part.end()));
    seen.insert(part.begin(), part.end());
  }
  CHECK(seen.size() == 100);
  CHECK(parts == stratified_split_indices(labels, {70, 20, 10}, 3));
  CHECK(parts != stratified_split_indices(labels, {70, 20, 10}, 4));
  CHECK_THROWS_AS(stratified_split_indices(labels, {70, 31}, 3), ConfigError);
}

TEST_CASE("the shares of labels stay within two samples for any numbers") {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 997; ++i) labels.push_back((i * i) % 13);
  const auto all = counts(fold_indices(997, 2, 0)[0], labels);
  const std::vector<int64_t> sizes = {613, 211, 173};
  const auto parts = stratified_split_indices(labels, sizes, 9);
  std::vector<int64_t> everything(997);
  for (size_t i = 0; i < everything.size(); ++i) everything[i] = static_cast<int64_t>(i);
  const auto whole = counts(everything, labels);
  CHECK(all.size() == whole.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    REQUIRE(static_cast<int64_t>(parts[p].size()) == sizes[p]);
    auto found = counts(parts[p], labels);
    for (const auto& [label, count] : whole) {
      const double share = static_cast<double>(count) * static_cast<double>(sizes[p]) / 997.0;
      CHECK(std::abs(static_cast<double>(found[label]) - share) < 2);
    }
  }
}

TEST_CASE("stratified_split makes datasets of fractions") {
  const auto dataset = std::make_shared<TensorDataset>(Batch({at::arange(100, at::kLong)}));
  const auto parts = stratified_split(dataset, uneven_labels(), {0.5, 0.5}, 1);
  REQUIRE(parts.size() == 2);
  CHECK(counts(parts[1]->indices(), uneven_labels()) == std::map<int64_t, int64_t>{{0, 30}, {1, 15}, {2, 5}});
  CHECK_THAT(message_of<ConfigError>([&] {
               stratified_split(dataset, {1, 2}, {1.0}, 1);
             }),
             ContainsSubstring("2 labels for 100 samples"));
  CHECK_THROWS_AS(stratified_split(dataset, uneven_labels(), {0.5, 0.4}, 1), ConfigError);
}

TEST_CASE("folds are disjoint, whole and of equal size") {
  for (const bool stratified : {false, true}) {
    const auto labels = uneven_labels();
    const auto folds = stratified ? stratified_fold_indices(labels, 7, 2) : fold_indices(100, 7, 2);
    REQUIRE(folds.size() == 7);
    std::set<int64_t> seen;
    for (const auto& fold : folds) {
      CHECK((fold.size() == 14 || fold.size() == 15));
      seen.insert(fold.begin(), fold.end());
      if (stratified) CHECK(counts(fold, labels)[2] >= 1);
    }
    CHECK(seen.size() == 100);
  }
  CHECK_THROWS_AS(fold_indices(10, 1, 0), ConfigError);
  CHECK_THROWS_AS(fold_indices(10, 11, 0), ConfigError);
}

TEST_CASE("the parts of SplitOptions: sizes by fractions, or a fold, with the same test part") {
  SplitOptions options;
  options.val_fraction = 0.2;
  options.test_fraction = 0.1;
  const auto parts = options.parts(50, nullptr, "data.Test");
  CHECK(parts[0].size() == 35);
  CHECK(parts[1].size() == 10);
  CHECK(parts[2].size() == 5);
  options.split_seed = 1;
  CHECK(options.parts(50, nullptr, "data.Test") != parts);
  std::set<int64_t> validated;
  std::vector<int64_t> test_part;
  for (int64_t k = 1; k <= 3; ++k) {
    options.fold = std::to_string(k) + "/3";
    const auto folded = options.parts(50, nullptr, "data.Test");
    CHECK(folded[0].size() == 30);
    CHECK(folded[1].size() == 15);
    if (k > 1) CHECK(folded[2] == test_part);
    test_part = folded[2];
    for (const int64_t index : folded[1]) CHECK(validated.insert(index).second);
    for (const int64_t index : folded[0]) CHECK_FALSE(std::ranges::binary_search(folded[1], index));
  }
  CHECK(validated.size() == 45);
  const auto labels = uneven_labels();
  options.fold = "2/5";
  options.test_fraction = 0;
  const auto by_label = options.parts(100, &labels, "data.Test");
  CHECK(counts(by_label[1], labels) == std::map<int64_t, int64_t>{{0, 12}, {1, 6}, {2, 2}});
}

TEST_CASE("splits that cannot be made are named") {
  SplitOptions options;
  for (const char* const bad : {"0/5", "6/5", "1/1", "a/5", "2", "2/5/1", "-1/5", "1/1001"}) {
    options.fold = bad;
    CHECK_THAT(message_of<ConfigError>([&] { options.check("data.Test"); }),
               ContainsSubstring("[data.Test] fold must be K/N") && ContainsSubstring(bad));
  }
  options.fold = "1/5";
  CHECK_THAT(message_of<DataError>([&] { options.parts(4, nullptr, "data.Test"); }), ContainsSubstring("5 folds"));
  options.fold = "";
  options.val_fraction = options.test_fraction = 0.5;
  CHECK_THAT(message_of<ConfigError>([&] { options.check("data.Test"); }), ContainsSubstring("something to train on"));
  options.test_fraction = 0.1;
  CHECK_THAT(message_of<DataError>([&] { options.parts(2, nullptr, "data.Test"); }),
             ContainsSubstring("the part for test has none of 2"));
}

}  // namespace splits_test
