#include "logging/rank_numbers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "fulgur/checkpoint/origin.h"

namespace fulgur::detail {
namespace {

// Everything is exchanged as integers. A backend's maximum of doubles may drop NaN, and the last bits of its sum depend
// on the order of addition: with Gloo's ring, on the position of a value in the tensor, and therefore on what else is
// logged.

using Merge = RankNumber::Merge;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr size_t kEach = 2;                                          // integers per number, in each exchange
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();       // no rank has the number
constexpr int64_t kZero = kNone + 1;                                 // below each exponent
constexpr int64_t kNotFinite = std::numeric_limits<int64_t>::max();  // above each exponent
// The hash is sent along with the maxima of this many integers, so that most rows need one exchange less.
constexpr size_t kRoom = 64;
// A sum consists of two integers of this many bits, 80 below the largest exponent; the rest of the 63 bits is for
// carries of the ranks.
constexpr int kBits = 40;

/// Integers in the order of the doubles. -0.0 is below 0.0, and NaN above all.
int64_t ordered(double value) {
  if (std::isnan(value)) return kNotFinite;
  const auto bits = std::bit_cast<int64_t>(value);
  return bits < 0 ? bits ^ std::numeric_limits<int64_t>::max() : bits;
}

double from_ordered(int64_t number) {
  if (number == kNotFinite) return kNaN;
  return std::bit_cast<double>(number < 0 ? number ^ std::numeric_limits<int64_t>::max() : number);
}

/// The integers that ranks exchange as maxima. For a sum: its exponent, or a mark for +infinity or NaN; and a mark for
/// -infinity or NaN.
void write_maxima(const RankNumber& number, int64_t rank, int64_t* to) {
  to[0] = to[1] = kNone;
  if (!number.own) return;
  const double value = *number.own;
  switch (number.merge) {
    case Merge::sum:
      to[0] = value == kInfinity || std::isnan(value) ? kNotFinite
              : value == 0 || value == -kInfinity     ? kZero
                                                      : std::ilogb(value) + 1;
      to[1] = value == -kInfinity || std::isnan(value) ? kNotFinite : kZero;
      break;
    case Merge::min:
      to[0] = ordered(-value);
      break;
    case Merge::max:
      to[0] = ordered(value);
      break;
    case Merge::first:
      to[0] = -rank;
      break;
  }
}

bool is_finite_sum(const int64_t* maxima) {
  return maxima[0] != kZero && maxima[0] != kNotFinite && maxima[1] != kNotFinite;
}

/// The integers that ranks exchange as sums, once they know the maxima. At most one rank has the bits of a `first`.
void write_parts(const RankNumber& number, int64_t rank, const int64_t* maxima, int64_t* to) {
  if (!number.own) return;
  if (number.merge == Merge::first && maxima[0] == -rank) to[0] = std::bit_cast<int64_t>(*number.own);
  if (number.merge != Merge::sum || !is_finite_sum(maxima)) return;
  const double scaled = std::ldexp(*number.own, 2 * kBits - static_cast<int>(maxima[0]));
  to[0] = static_cast<int64_t>(std::ldexp(scaled, -kBits));
  to[1] = static_cast<int64_t>(scaled - std::ldexp(static_cast<double>(to[0]), kBits));
}

double sum_of(const int64_t* maxima, const int64_t* parts) {
  const bool above = maxima[0] == kNotFinite, below = maxima[1] == kNotFinite;
  if (above || below) return above && below ? kNaN : above ? kInfinity : -kInfinity;
  if (!is_finite_sum(maxima)) return 0;
  const int64_t high = parts[0] + (parts[1] >> kBits), low = parts[1] & ((int64_t{1} << kBits) - 1);
  const int exponent = static_cast<int>(maxima[0]);
  return std::ldexp(static_cast<double>(high), exponent - kBits) +
         std::ldexp(static_cast<double>(low), exponent - 2 * kBits);
}

std::optional<double> result(const RankNumber& number, const int64_t* maxima, const int64_t* parts) {
  if (maxima[0] == kNone) return std::nullopt;
  switch (number.merge) {
    case Merge::sum:
      return sum_of(maxima, parts);
    case Merge::min:
      return -from_ordered(maxima[0]);
    case Merge::max:
      return from_ordered(maxima[0]);
    case Merge::first:
      return std::bit_cast<double>(parts[0]);
  }
  return std::nullopt;
}

/// The maxima over ranks, if `layout` is the same on all.
std::optional<std::vector<int64_t>> exchange_maxima(Collectives& collectives, int64_t layout,
                                                    const std::vector<int64_t>& own) {
  // This exchange has the same size on all ranks, even if they have different counts of numbers.
  const auto in_first = static_cast<std::ptrdiff_t>(std::min(own.size(), kRoom));
  std::vector<int64_t> first{layout, ~layout};
  first.insert(first.end(), own.begin(), own.begin() + in_first);
  first.resize(2 + kRoom, kNone);
  const std::vector<int64_t> agreed = collectives.start_max(std::move(first))->take();
  // The largest equals the smallest. All ranks see the same values, and so come to the same decision.
  if (agreed[0] != ~agreed[1]) return std::nullopt;
  std::vector<int64_t> maxima(agreed.begin() + 2, agreed.begin() + 2 + in_first);
  if (own.size() > kRoom) {
    const std::vector<int64_t> rest = collectives.start_max({own.begin() + in_first, own.end()})->take();
    maxima.insert(maxima.end(), rest.begin(), rest.end());
  }
  return maxima;
}

}  // namespace

std::optional<std::vector<std::optional<double>>> merge_numbers(Collectives& collectives, int64_t layout,
                                                                const std::vector<RankNumber>& numbers) {
  const int64_t rank = collectives.rank();
  std::vector<int64_t> own(kEach * numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) write_maxima(numbers[i], rank, &own[kEach * i]);
  const std::optional<std::vector<int64_t>> maxima = exchange_maxima(collectives, layout, own);
  if (!maxima) return std::nullopt;
  std::vector<std::optional<double>> results;
  if (numbers.empty()) return results;
  Tensor parts = at::zeros({static_cast<int64_t>(own.size())}, at::kLong);
  for (size_t i = 0; i < numbers.size(); ++i)
    write_parts(numbers[i], rank, &(*maxima)[kEach * i], parts.mutable_data_ptr<int64_t>() + kEach * i);
  parts = collectives.all_reduce(parts, ReduceOp::sum);
  for (size_t i = 0; i < numbers.size(); ++i)
    results.push_back(result(numbers[i], &(*maxima)[kEach * i], parts.const_data_ptr<int64_t>() + kEach * i));
  return results;
}

int64_t hash_number(std::string_view bytes) {
  return static_cast<int64_t>(std::stoull(content_hash(bytes), nullptr, /*base=*/16));
}

}  // namespace fulgur::detail
