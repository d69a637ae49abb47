#include "support/combinations.h"

#include <catch2/catch_test_macros.hpp>

#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <string>

namespace combinations_test {

using namespace fulgur::test;

namespace {

// Sets FULGUR_ALL_COMBINATIONS, or removes it, while it lives.
struct AllCombinations {
  explicit AllCombinations(bool all) {
    if (const char* const value = std::getenv(kName)) before = value;
    if (all)
      ::setenv(kName, "1", 1);
    else
      ::unsetenv(kName);
  }
  ~AllCombinations() {
    if (before)
      ::setenv(kName, before->c_str(), 1);
    else
      ::unsetenv(kName);
  }
  AllCombinations(const AllCombinations&) = delete;
  AllCombinations& operator=(const AllCombinations&) = delete;

  static constexpr const char* kName = "FULGUR_ALL_COMBINATIONS";
  std::optional<std::string> before;
};

std::vector<int> numbers(int count) {
  std::vector<int> list(static_cast<size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

}  // namespace

TEST_CASE("combinations of options: each value occurs, and no combination twice") {
  for (int a = 1; a <= 7; ++a)
    for (int b = 1; b <= 7; ++b)
      for (int c = 1; c <= 4; ++c)
        for (const bool all : {false, true}) {
          const AllCombinations setting(all);
          const auto chosen = combinations<int, int, int>(numbers(a), numbers(b), numbers(c));
          std::set<int> of_a, of_b, of_c;
          std::set<std::tuple<int, int, int>> different;
          for (const auto& [x, y, z] : chosen) {
            of_a.insert(x);
            of_b.insert(y);
            of_c.insert(z);
            different.insert({x, y, z});
          }
          CAPTURE(a, b, c, all);
          CHECK(of_a.size() == static_cast<size_t>(a));
          CHECK(of_b.size() == static_cast<size_t>(b));
          CHECK(of_c.size() == static_cast<size_t>(c));
          CHECK(different.size() == chosen.size());
          const int longest = std::max({a, b, c});
          CHECK(chosen.size() == static_cast<size_t>(all ? a * b * c : std::max(longest, a * b * c / longest)));
        }
}

}  // namespace combinations_test
