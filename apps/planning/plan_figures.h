#pragma once

#include <string>

/// Numbers as tables of the plan show them.
namespace fulgur::cli {

inline constexpr double kDay = 86400;  // seconds

std::string gib(double bytes);
std::string four_figures(double value);
/// `1.234e+09` is hard to read: 1.234 G.
std::string large(double value);
std::string duration(double seconds);
std::string percent(double part);

}  // namespace fulgur::cli
