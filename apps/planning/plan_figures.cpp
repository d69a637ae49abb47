#include "planning/plan_figures.h"

#include <cstdio>

#include "fulgur/core/text/text.h"

namespace fulgur::cli {

std::string gib(double bytes) { return format_fixed(bytes / (1024.0 * 1024 * 1024), 2); }

std::string four_figures(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string large(double value) {
  for (const auto& [unit, name] :
       {std::pair(1e12, " T"), std::pair(1e9, " G"), std::pair(1e6, " M"), std::pair(1e3, " k")})
    if (value >= unit) return cat(four_figures(value / unit), name);
  return four_figures(value);
}

std::string duration(double seconds) {
  if (seconds < 1) return cat(four_figures(seconds * 1e3), " ms");
  if (seconds < 120) return cat(four_figures(seconds), " s");
  if (seconds < 7200) return cat(format_fixed(seconds / 60, 1), " min");
  return cat(format_fixed(seconds / 3600, 1), " h");
}

std::string percent(double part) { return cat(format_fixed(part * 100, 1), " %"); }

}  // namespace fulgur::cli
