#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <tuple>
#include <vector>

namespace fulgur::test {

/// FULGUR_ALL_COMBINATIONS=1: tests run all combinations of their options, and as many steps as the documents say.
inline bool all_combinations() { return std::getenv("FULGUR_ALL_COMBINATIONS") != nullptr; }

/// Combinations of one value of each list, in which each value of each list occurs: each value of the longest list
/// once, if these are enough for the combinations of the others. With FULGUR_ALL_COMBINATIONS=1, all combinations.
///
///     const auto [mesh, options] = GENERATE(from_range(combinations<Mesh, Arguments>({…}, {…})));
template <class... T>
std::vector<std::tuple<T...>> combinations(const std::vector<T>&... lists) {
  const std::vector<size_t> sizes{lists.size()...};
  size_t all = 1;
  for (const size_t size : sizes) all *= size;
  const auto longest = static_cast<size_t>(std::ranges::max_element(sizes) - sizes.begin());
  const size_t of_others = all / sizes[longest];
  const size_t count = all_combinations() ? all : std::max(sizes[longest], of_others);
  std::vector<std::tuple<T...>> chosen;
  for (size_t i = 0; i < count; ++i) {
    // The numbers of the other lists are the digits of i.
    std::vector<size_t> at(sizes.size());
    size_t digits = i;
    for (size_t list = 0; list < sizes.size(); ++list) {
      if (list == longest) continue;
      at[list] = digits % sizes[list];
      digits /= sizes[list];
    }
    at[longest] = (all_combinations() ? i / of_others : i + i / sizes[longest]) % sizes[longest];
    size_t list = 0;
    const auto next = [&](const auto& values) { return values[at[list++]]; };
    chosen.push_back(std::tuple<T...>{next(lists)...});
  }
  return chosen;
}

}  // namespace fulgur::test
