#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/collectives.h"

namespace fulgur::detail {

/// One rank's part of a number that is merged over all ranks.
struct RankNumber {
  enum class Merge { sum, min, max, first };
  Merge merge;
  std::optional<double> own;  ///< nullopt if this rank has none
};

/// Merges the numbers of all ranks into one each: their sum, minimum or maximum, or that of the first rank that has
/// one. NaN on any rank gives NaN. Nullopt for a number that no rank has.
///
/// The bits are the same on all ranks, and depend only on the numbers: neither on the order of ranks nor on what else
/// is exchanged with them. The data that a rank sends does not depend on the number of ranks (at most 2^23).
///
/// `layout` is a hash of what the numbers mean. If it differs between ranks, no rank gets a result.
std::optional<std::vector<std::optional<double>>> merge_numbers(Collectives& collectives, int64_t layout,
                                                                const std::vector<RankNumber>& numbers);

/// XXH3 as an exchangeable number.
int64_t hash_number(std::string_view bytes);

}  // namespace fulgur::detail
