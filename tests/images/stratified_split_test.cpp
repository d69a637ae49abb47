#include "fulgur/images/stratified_split.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <map>
#include <set>

#include "fulgur/core/text/errors.h"

namespace stratified_split_test {

using namespace fulgur;

namespace {

std::map<int64_t, int64_t> counts_of(const std::vector<int64_t>& labels, const std::vector<int64_t>& part) {
  std::map<int64_t, int64_t> counts;
  for (const int64_t index : part) ++counts[labels[static_cast<size_t>(index)]];
  return counts;
}

}  // namespace

TEST_CASE("each label has its share in each part") {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 100; ++i) labels.push_back(i % 10 < 6 ? 0 : i % 10 < 9 ? 1 : 2);  // 60, 30, 10
  const auto parts = stratified_split(labels, {20, 10, 70}, 3);
  REQUIRE(parts.size() == 3);
  CHECK(counts_of(labels, parts[0]) == std::map<int64_t, int64_t>{{0, 12}, {1, 6}, {2, 2}});
  CHECK(counts_of(labels, parts[1]) == std::map<int64_t, int64_t>{{0, 6}, {1, 3}, {2, 1}});
  CHECK(counts_of(labels, parts[2]) == std::map<int64_t, int64_t>{{0, 42}, {1, 21}, {2, 7}});
  std::set<int64_t> all;
  for (const auto& part : parts) {
    CHECK(std::is_sorted(part.begin(), part.end()));
    all.insert(part.begin(), part.end());
  }
  CHECK(all.size() == 100);
  CHECK(parts == stratified_split(labels, {20, 10, 70}, 3));
  CHECK(parts != stratified_split(labels, {20, 10, 70}, 4));
}

TEST_CASE("sizes are exact, whatever the labels are") {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 53; ++i) labels.push_back(i * i % 7);
  for (int64_t a = 0; a <= 53; a += 4)
    for (int64_t b = 0; a + b <= 53; b += 5) {
      const auto parts = stratified_split(labels, {a, b, 53 - a - b}, 1);
      std::set<int64_t> all;
      for (const auto& part : parts) all.insert(part.begin(), part.end());
      CHECK(static_cast<int64_t>(parts[0].size()) == a);
      CHECK(static_cast<int64_t>(parts[1].size()) == b);
      CHECK(all.size() == 53);
      const auto whole = counts_of(labels, [] {
        std::vector<int64_t> every(53);
        for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<int64_t>(i);
        return every;
      }());
      for (const auto& [label, count] : counts_of(labels, parts[0])) {
        const double share = static_cast<double>(whole.at(label)) * static_cast<double>(a) / 53;
        CHECK(std::abs(static_cast<double>(count) - share) < 1);
      }
    }
}

TEST_CASE("parts that do not fit are refused") {
  CHECK_THROWS_AS(stratified_split({0, 1, 0}, {2, 2}, 0), ConfigError);
  CHECK_THROWS_AS(stratified_split({0, 1, 0}, {-1}, 0), ConfigError);
  CHECK(stratified_split({}, {0, 0}, 0) == std::vector<std::vector<int64_t>>(2));
}

}  // namespace stratified_split_test
