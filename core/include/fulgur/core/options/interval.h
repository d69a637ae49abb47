#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// How many batches to use: a count (`1`) or a fraction of those available (`1.0`).
struct FULGUR_API BatchLimit {
  std::optional<int64_t> count;
  double fraction = 1.0;
  BatchLimit() = default;
  BatchLimit(int64_t n) : count(n) {}
  BatchLimit(int n) : count(n) {}
  BatchLimit(double part) : fraction(part) {}
  /// Number of batches to use out of `available` (nullopt if unknown). A fraction other than 1.0 of an unknown number,
  /// and a fraction that leaves no batch of a non-empty loader, are ConfigErrors that name `option`.
  std::optional<int64_t> resolve(std::optional<int64_t> available, std::string_view option) const;
  bool is_zero() const { return count ? *count == 0 : fraction == 0.0; }
};

/// A length of training or time, written `<number><unit>`: `10ep`, `500st`, `30min`. Used for every interval.
struct FULGUR_API Interval {
  enum class Unit {
    epochs,
    steps,
    samples,
    tokens,
    seconds,
    run
  };  ///< ep, st, sa, tok, s|min|h, dur (fraction of the run)
  double value = 0;
  Unit unit = Unit::steps;

  Interval() = default;
  Interval(double number, Unit of) : value(number), unit(of) {}
  /// `options.max_time = "10min"`. Throws a ConfigError if the text is not an interval.
  Interval(const char* text);
  Interval(std::nullptr_t) = delete;
  std::string text() const;
  /// Nullopt if `text` is not an interval.
  static std::optional<Interval> parse(std::string_view text);
  /// All units: `ep`, `st`, `sa`, `tok`, `s`, `min`, `h`, `dur`.
  static std::vector<std::string> all_units();
};

/// A bare count (`10`) in the option's own unit, or an interval (`10ep`, `0.1dur`).
struct FULGUR_API Length {
  int64_t count = 0;
  std::optional<Interval> interval;
  Length() = default;
  Length(int64_t n) : count(n) {}
  Length(int n) : count(n) {}
  Length(Interval length) : interval(length) {}
  Length(const char* text) : Length(Interval(text)) {}
  Length(std::nullptr_t) = delete;
};

}  // namespace fulgur
