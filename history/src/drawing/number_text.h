#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::history {

/// Five significant digits; `nan`, `inf`.
std::string value_text(double value);
/// `-` if there is no value.
std::string value_text(const std::optional<double>& value);
/// `0.64 s`, `2:05`, `3:02:05`; `-` if there is none.
std::string duration_text(const std::optional<double>& seconds);
/// `1.5 MB`.
std::string bytes_text(uint64_t bytes);
/// `values` as one line of eight heights.
std::string spark_line(const std::vector<double>& values);

}  // namespace fulgur::history
