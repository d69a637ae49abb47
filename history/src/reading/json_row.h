#pragma once

#include <functional>
#include <string_view>

namespace fulgur::history {

/// Called with the name, the text of the value (without quotes) and the value.
using NumberSink = std::function<void(std::string_view name, std::string_view text, double value)>;

/// Reads one JSON object of numbers, as JsonlLogger writes it: the strings NaN, Infinity and -Infinity are numbers too,
/// and null is left out. False if `line` is anything else; then `sink` may have been called.
bool for_each_number(std::string_view line, const NumberSink& sink);

}  // namespace fulgur::history
