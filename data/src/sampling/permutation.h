#pragma once

#include <cstdint>
#include <vector>

namespace fulgur {

/// A random permutation of 0 … size - 1: a pure function of its arguments, the same on every platform and with every
/// standard library. `stream` separates different uses of one seed (an epoch, a split).
std::vector<int64_t> random_permutation(int64_t size, uint64_t seed, uint64_t stream);

}  // namespace fulgur
