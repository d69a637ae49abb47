#include "sampling/permutation.h"

#include <numeric>
#include <utility>

#include "fulgur/core/state/split_mix.h"

namespace fulgur {

std::vector<int64_t> random_permutation(int64_t size, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  SplitMix64 random(mix_bits(seed + 0x9e3779b97f4a7c15u) ^ mix_bits(stream ^ 0xd1b54a32d192ed03u));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace fulgur
