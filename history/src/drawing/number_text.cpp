#include "drawing/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "fulgur/core/text/text.h"

namespace fulgur::history {

std::string value_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

std::string value_text(const std::optional<double>& value) { return value ? value_text(*value) : "-"; }

std::string duration_text(const std::optional<double>& seconds) {
  if (!seconds || !std::isfinite(*seconds)) return "-";
  if (*seconds < 60) return cat(format_fixed(*seconds, *seconds < 10 ? 2 : 1), " s");
  const auto whole = static_cast<int64_t>(std::min(*seconds, 1e15) + 0.5);
  const auto two = [](int64_t n) { return n < 10 ? cat("0", n) : cat(n); };
  if (whole >= 3600) return cat(whole / 3600, ":", two(whole / 60 % 60), ":", two(whole % 60));
  return cat(whole / 60, ":", two(whole % 60));
}

std::string bytes_text(uint64_t bytes) {
  const auto in = [&](double unit, const char* name) {
    return format_fixed(static_cast<double>(bytes) / unit, 1) + name;
  };
  if (bytes < 1000) return cat(bytes, " B");
  if (bytes < 1'000'000) return in(1e3, " kB");
  if (bytes < 1'000'000'000) return in(1e6, " MB");
  return in(1e9, " GB");
}

std::string spark_line(const std::vector<double>& values) {
  constexpr const char* kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  std::string line;
  for (const double value : values) {
    const double place = most > least ? (value / 2 - least / 2) / (most / 2 - least / 2) : 0.5;
    line += std::isfinite(place) ? kHeights[std::clamp(static_cast<int>(place * 8), 0, 7)] : "×";
  }
  return line;
}

}  // namespace fulgur::history
