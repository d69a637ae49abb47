#include "drawing.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::images {
namespace {

std::string values_text(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(format_double(value));
  return cat("[", join_some(texts, 6), "]");
}

std::string values_text(const std::vector<int64_t>& values) {
  std::vector<std::string> texts;
  for (const int64_t value : values) texts.push_back(cat(value));
  return cat("[", join_some(texts, 6), "]");
}

}  // namespace

ImageSize size_from(const OneOrMore<int64_t>& size, const char* who) {
  const auto& values = size.values;
  if (values.empty() || values.size() > 2 ||
      std::any_of(values.begin(), values.end(), [](int64_t value) { return value < 1 || value > (1 << 16); }))
    throw ConfigError(cat("[", who, "] size must be one number of pixels, or [height, width], from 1 to 65536; got ",
                          values_text(values), ". Write for example `size: 224`."));
  return {values.front(), values.back()};
}

Sides sides_from(const OneOrMore<int64_t>& padding, const char* who) {
  const auto& values = padding.values;
  if ((values.size() != 1 && values.size() != 2 && values.size() != 4) ||
      std::any_of(values.begin(), values.end(), [](int64_t value) { return value < 0 || value > (1 << 16); }))
    throw ConfigError(cat("[", who,
                          "] padding must be one number of pixels, [left and right, top and bottom] or [left, top, "
                          "right, bottom], from 0 to 65536; got ",
                          values_text(values), "."));
  if (values.size() == 4) return {values[0], values[1], values[2], values[3]};
  return {values.front(), values.back(), values.front(), values.back()};
}

std::pair<double, double> symmetric_range(const OneOrMore<double>& value, const char* who, const char* option) {
  const auto& values = value.values;
  const auto finite = [](double number) { return std::isfinite(number); };
  if (values.size() == 1 && finite(values[0]) && values[0] >= 0) return {-values[0], values[0]};
  if (values.size() != 2 || !std::all_of(values.begin(), values.end(), finite) || values[0] > values[1])
    throw ConfigError(cat("[", who, "] ", option, " must be a number of at least 0, or [smallest, largest]; got ",
                          values_text(values), "."));
  return {values[0], values[1]};
}

void check_range(const std::vector<double>& range, double lowest, bool open, const char* who, const char* option) {
  if (range.size() == 2 && range[0] <= range[1] && (open ? range[0] > lowest : range[0] >= lowest) &&
      std::isfinite(range[1]))
    return;
  throw ConfigError(cat("[", who, "] ", option, " must be [smallest, largest], ", open ? "greater than " : "at least ",
                        lowest, "; got ", values_text(range), "."));
}

void check_values(const OneOrMore<double>& values, const char* who, const char* option) {
  if (values.values.empty() ||
      !std::all_of(values.values.begin(), values.values.end(), [](double value) { return std::isfinite(value); }))
    throw ConfigError(cat("[", who, "] ", option, " must be a finite number, or a list of one per channel; got ",
                          values_text(values.values), "."));
}

}  // namespace fulgur::images
