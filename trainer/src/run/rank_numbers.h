#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fulgur/core/collectives.h"

namespace fulgur::detail {

/// What a rank has of a number that all ranks are to have in common.
struct RankNumber {
  enum class Merge { sum, min, max, first };
  Merge merge;
  std::optional<double> own;  ///< nothing if this rank has none
};

/// The numbers of all ranks as one each: their sum, minimum or maximum, or that of the first rank that has one.
/// NaN of any rank is NaN. Nothing for a number that no rank has.
///
/// The bits are the same on all ranks, and depend on nothing but the numbers: neither on the order of ranks nor on
/// what else is exchanged with them. What a rank sends does not depend on the number of ranks (at most 2^23).
///
/// `layout` is a hash of what the numbers mean. If it differs between ranks, there is no result on any of them.
std::optional<std::vector<std::optional<double>>> merge_numbers(Collectives& collectives, int64_t layout,
                                                                const std::vector<RankNumber>& numbers);

/// XXH3 as a number that can be exchanged.
int64_t hash_number(std::string_view bytes);

}  // namespace fulgur::detail
