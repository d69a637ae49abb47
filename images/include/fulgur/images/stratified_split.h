#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// Disjoint random parts of the samples, `sizes` large, each in ascending order, in which each label has its share of
/// the whole data set, rounded up or down where enough samples are left. A pure function of its arguments. Throws a
/// ConfigError if a size is negative or their sum is too large.
FULGUR_API std::vector<std::vector<int64_t>> stratified_split(const std::vector<int64_t>& labels,
                                                              const std::vector<int64_t>& sizes, uint64_t seed);

}  // namespace fulgur
