#include "sweep/points.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/sweep_trials.h"

namespace fulgur::history {
namespace {

constexpr uint64_t kEndless = std::numeric_limits<uint64_t>::max();

/// Values of a range with steps.
uint64_t steps_of(const SweepRange& range) {
  const double step = range.step.value_or(1);
  // A bound that is a multiple of the step up to rounding is included.
  const double count = std::floor((range.max - range.min) / step * (1 + 1e-12) + 1e-9) + 1;
  return count < 0x1p53 ? static_cast<uint64_t>(count) : uint64_t{1} << 53;
}

bool is_discrete(const SweepRange& range) { return range.integer || range.step.has_value(); }

uint64_t possible_values(const SweepAxis& axis) {
  if (!axis.range) return axis.values.size();
  return is_discrete(*axis.range) ? steps_of(*axis.range) : kEndless;
}

/// The number with so many significant digits, as the text that a person would write.
std::string short_number(double value, int digits) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits);
  return std::string(text, end);
}

ConfigNode whole_number(double value) { return ConfigNode::integer(static_cast<int64_t>(value)); }

ConfigNode real_number(double value, const SweepRange& range, int digits) {
  const std::string text = short_number(value, digits);
  const double rounded = parse_whole<double>(text).value_or(value);
  // Rounding must not leave the range.
  return ConfigNode::number(std::clamp(rounded, range.min, range.max));
}

ConfigNode draw_number(const SweepRange& range, SplitMix64& random) {
  if (range.scale == RangeScale::log) {
    const double low = std::log(range.min), high = std::log(range.integer ? range.max + 1 : range.max);
    const double value = std::exp(low + random.uniform() * (high - low));
    if (range.integer) return whole_number(std::clamp(std::floor(value), range.min, range.max));
    return real_number(value, range, 6);
  }
  if (is_discrete(range)) {
    const double value = range.min + range.step.value_or(1) * static_cast<double>(random.below(steps_of(range)));
    return range.integer ? whole_number(value) : real_number(value, range, 12);
  }
  return real_number(range.min + random.uniform() * (range.max - range.min), range, 6);
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// By the key and not by its place, so that another key does not change the draws of this one.
SplitMix64 generator_of(uint64_t seed, uint64_t point, uint64_t attempt, std::string_view key) {
  uint64_t start = mix_bits(seed + 0x9e3779b97f4a7c15u);
  start = mix_bits(start ^ hash_of(key));
  start = mix_bits(start + 0x9e3779b97f4a7c15u * (point + 1));
  return SplitMix64(mix_bits(start + attempt));
}

std::vector<ConfigNode> draw_point(const SweepSpec& spec, uint64_t point, uint64_t attempt) {
  std::vector<ConfigNode> values;
  for (const SweepAxis& axis : spec.space.axes) {
    SplitMix64 random = generator_of(spec.seed, point, attempt, axis.key);
    values.push_back(axis.range ? draw_number(*axis.range, random) : axis.values[random.below(axis.values.size())]);
  }
  return values;
}

std::vector<std::vector<ConfigNode>> random_points(const SweepSpec& spec) {
  // The last values of a small space may be improbable: the logarithm of a whole number is uniform.
  constexpr uint64_t kMostAttempts = 1'000'000;
  std::vector<std::vector<ConfigNode>> points;
  std::set<std::string> seen;
  for (int64_t i = 0; i < *spec.trials; ++i) {
    for (uint64_t attempt = 0;; ++attempt) {
      if (attempt == kMostAttempts)
        throw ConfigError(cat("[sweep] points differ from each other; after ", i,
                              " points, no other one was found. Use fewer trials, or method: grid."));
      std::vector<ConfigNode> point = draw_point(spec, static_cast<uint64_t>(i), attempt);
      std::string text;
      for (const ConfigNode& value : point) text += override_text(value) + "\n";
      if (!seen.insert(std::move(text)).second) continue;
      points.push_back(std::move(point));
      break;
    }
  }
  return points;
}

std::vector<std::vector<ConfigNode>> grid_points(const SweepSpec& spec) {
  std::vector<std::vector<ConfigNode>> points{{}};
  for (const SweepAxis& axis : spec.space.axes) {
    std::vector<std::vector<ConfigNode>> longer;
    for (const auto& point : points) {
      for (const ConfigNode& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

}  // namespace

uint64_t possible_points(const SweepSpec& spec) {
  uint64_t product = 1;
  for (const SweepAxis& axis : spec.space.axes) {
    const uint64_t count = possible_values(axis);
    if (count == kEndless || product > kEndless / std::max<uint64_t>(count, 1)) return kEndless;
    product *= count;
  }
  return product;
}

std::vector<std::vector<ConfigNode>> points_of(const SweepSpec& spec) {
  return spec.method == SweepMethod::grid ? grid_points(spec) : random_points(spec);
}

}  // namespace fulgur::history
