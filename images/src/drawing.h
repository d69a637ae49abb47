#pragma once

#include <utility>
#include <vector>

#include "fulgur/images/functional.h"
#include "fulgur/images/one_or_more.h"

/// What transforms share: shapes of their options, and random numbers.
namespace fulgur::images {

/// Height and width from one value (a square) or two. Throws a ConfigError that begins with `who` for others.
ImageSize size_from(const OneOrMore<int64_t>& size, const char* who);

struct Sides {
  int64_t left = 0, top = 0, right = 0, bottom = 0;
};
/// All sides from one value, left/right and top/bottom from two, or four. Throws a ConfigError for others.
Sides sides_from(const OneOrMore<int64_t>& padding, const char* who);

/// [-x, x] for one value, or the two values. Throws a ConfigError for others.
std::pair<double, double> symmetric_range(const OneOrMore<double>& value, const char* who, const char* option);

/// Throws a ConfigError unless `range` has two finite values that do not fall, both at least (or, if `open`, greater
/// than) `lowest`.
void check_range(const std::vector<double>& range, double lowest, bool open, const char* who, const char* option);
/// Throws a ConfigError unless there is a value and all are finite.
void check_values(const OneOrMore<double>& values, const char* who, const char* option);

inline double uniform_in(SplitMix64& random, double from, double to) { return from + (to - from) * random.uniform(); }
inline bool happens(SplitMix64& random, double p) { return random.uniform() < p; }
/// A whole number from 0 to `last`.
inline int64_t whole_up_to(SplitMix64& random, int64_t last) {
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(last) + 1));
}

}  // namespace fulgur::images
