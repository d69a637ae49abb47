#include "permutation.h"

#include <numeric>
#include <utility>

namespace fulgur {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the standard library's distributions may change between versions.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t start) : state_(start) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  /// Uniform in [0, bound) without bias (Lemire 2019).
  uint64_t below(uint64_t bound) {
    Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  using Wide = unsigned __int128;
  uint64_t state_;
};

}  // namespace

std::vector<int64_t> random_permutation(int64_t size, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  SplitMix64 random(mix(seed + 0x9e3779b97f4a7c15u) ^ mix(stream ^ 0xd1b54a32d192ed03u));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace fulgur
