#include "fulgur/core/options/interval.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

std::optional<int64_t> BatchLimit::resolve(std::optional<int64_t> available, std::string_view option) const {
  if (count) return available ? std::min(*count, *available) : *count;
  if (fraction == 0.0) return 0;
  if (!available) {
    if (fraction == 1.0) return std::nullopt;
    throw ConfigError(cat("[trainer.", option, "] a fraction needs a loader of known length; got ", fraction,
                          " and a loader that does not know its length. Give a number of batches, or 1.0."));
  }
  const auto batches = static_cast<int64_t>(static_cast<double>(*available) * fraction);
  if (batches == 0 && *available > 0) {
    throw ConfigError(cat("[trainer.", option, "] must leave at least one batch; got ", fraction, " of ", *available,
                          " batches. Give at least ", std::ceil(1e4 / static_cast<double>(*available)) / 1e4,
                          ", or a number of batches."));
  }
  return batches;
}

namespace {

struct UnitName {
  std::string_view name;
  Interval::Unit unit;
  double factor;
};

constexpr UnitName kUnits[] = {{"dur", Interval::Unit::run, 1},      {"min", Interval::Unit::seconds, 60},
                               {"tok", Interval::Unit::tokens, 1},   {"ep", Interval::Unit::epochs, 1},
                               {"st", Interval::Unit::steps, 1},     {"sa", Interval::Unit::samples, 1},
                               {"h", Interval::Unit::seconds, 3600}, {"s", Interval::Unit::seconds, 1}};

std::string number_text(double value) {
  // Without exponent, which `parse` does not read.
  std::array<char, 400> digits{};
  return std::string(digits.data(),
                     std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed).ptr);
}

}  // namespace

std::vector<std::string> Interval::all_units() { return {"ep", "st", "sa", "tok", "s", "min", "h", "dur"}; }

std::string Interval::text() const {
  // The largest unit that divides a time.
  const double factor = unit != Unit::seconds || value <= 0 ? 1
                        : std::fmod(value, 3600) == 0       ? 3600
                        : std::fmod(value, 60) == 0         ? 60
                                                            : 1;
  const auto* named =
      std::ranges::find_if(kUnits, [&](const UnitName& u) { return u.unit == unit && u.factor == factor; });
  return cat(number_text(value / factor), named->name);
}

Interval::Interval(const char* text) {
  const std::optional<Interval> parsed = parse(text);
  if (!parsed)
    throw ConfigError(cat("'", text, "' is not an interval. Write a number and a unit: ", join(all_units()),
                          ", as in 90min or 500st."));
  *this = *parsed;
}

std::optional<Interval> Interval::parse(std::string_view text) {
  for (const UnitName& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const std::string_view digits = text.substr(0, text.size() - unit.name.size());
    double value = 0;
    // No sign, exponent or leading zero: `1e3st` and `010st` mean different things to different readers.
    if (digits.empty() || digits.find_first_not_of("0123456789.") != std::string_view::npos) return std::nullopt;
    if (digits.size() > 1 && digits[0] == '0' && digits[1] != '.') return std::nullopt;
    const auto [rest, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (bad != std::errc() || rest != digits.data() + digits.size()) return std::nullopt;
    const bool counts = unit.unit == Unit::steps || unit.unit == Unit::samples || unit.unit == Unit::tokens;
    if (counts && value != std::floor(value)) return std::nullopt;
    if (unit.unit == Unit::run && value > 1) return std::nullopt;
    return Interval{value * unit.factor, unit.unit};
  }
  return std::nullopt;
}

}  // namespace fulgur
