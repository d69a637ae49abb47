#include "reading/curve.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <numeric>

namespace curve_test {

using fulgur::history::Curve;
using fulgur::history::StepMap;

TEST_CASE("a curve keeps each value while there are few") {
  Curve curve;
  for (int i = 0; i < 512; ++i) curve.add(i, i * 0.5);
  REQUIRE(curve.buckets().size() == 512);
  CHECK(curve.buckets()[100].first_step == 100);
  CHECK(curve.buckets()[100].mean == 50);
}

TEST_CASE("a long curve keeps its extremes, its mean and its steps in bounded memory") {
  constexpr int64_t kValues = 100'003;
  Curve curve;
  for (int64_t i = 0; i < kValues; ++i) curve.add(i * 10, i == 77'777 ? 1000.0 : i == 5 ? -1000.0 : std::sin(i * 0.01));
  const auto& buckets = curve.buckets();
  REQUIRE(buckets.size() <= Curve::kMostBuckets);
  CHECK(buckets.size() > Curve::kMostBuckets / 3);
  CHECK(buckets.front().first_step == 0);
  CHECK(buckets.back().last_step == (kValues - 1) * 10);
  int64_t count = 0;
  double sum = 0, least = 0, most = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    count += buckets[i].count;
    sum += buckets[i].mean * static_cast<double>(buckets[i].count);
    least = std::min(least, buckets[i].least);
    most = std::max(most, buckets[i].most);
    if (i > 0) CHECK(buckets[i].first_step == buckets[i - 1].last_step + 10);
  }
  CHECK(count == kValues);
  CHECK(least == -1000);
  CHECK(most == 1000);
  double exact = 0;
  for (int64_t i = 0; i < kValues; ++i) exact += i == 77'777 ? 1000.0 : i == 5 ? -1000.0 : std::sin(i * 0.01);
  CHECK(std::abs(sum - exact) < 1e-6);  // the order of the sums differs
}

TEST_CASE("values that are not finite are counted and left out") {
  Curve curve;
  curve.add(1, std::numeric_limits<double>::quiet_NaN());
  curve.add(2, 3);
  curve.add(3, -std::numeric_limits<double>::infinity());
  CHECK(curve.nonfinite() == 2);
  REQUIRE(curve.buckets().size() == 1);
  CHECK(curve.buckets()[0].least == 3);
}

TEST_CASE("at_most merges neighbours until there are few enough") {
  Curve curve;
  for (int i = 0; i < 300; ++i) curve.add(i, i);
  const auto few = curve.at_most(100);
  CHECK(few.size() == 75);
  CHECK(few.front().least == 0);
  CHECK(few.front().most == 3);
  CHECK(few.back().last_step == 299);
  CHECK(curve.at_most(1).size() == 1);
}

TEST_CASE("a step map is linear between its anchors and continues after the last one") {
  StepMap map;
  CHECK(map.empty());
  CHECK(map.at(5) == 0);
  map.add(10, 1);
  map.add(10, 7);  // not after the last
  map.add(30, 2);
  CHECK(map.at(0) == 0);
  CHECK(map.at(5) == 0.5);
  CHECK(map.at(10) == 1);
  CHECK(map.at(20) == 1.5);
  CHECK(map.at(50) == 3);
  StepMap many;
  for (int i = 1; i <= 10'000; ++i) many.add(i, i * 2.0);
  CHECK(many.at(7777) == 2 * 7777.0);
  CHECK(many.at(10'000) == 20'000);
}

}  // namespace curve_test
