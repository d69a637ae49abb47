#pragma once

#include <cstdint>

namespace fulgur {

/// Mixes the bits of `x` so that nearby values give unrelated results.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, quick to start, and the same on every platform, unlike the
/// distributions of the standard library.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t start) : state_(start) {}
  uint64_t next() { return mix_bits(state_ += 0x9e3779b97f4a7c15u); }
  /// A number that is uniform in [0, bound), without bias (Lemire 2019); `bound` is at least 1.
  uint64_t below(uint64_t bound) {
    Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }
  /// A number that is uniform in [0, 1), in steps of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  __extension__ using Wide = unsigned __int128;
  uint64_t state_;
};

}  // namespace fulgur
