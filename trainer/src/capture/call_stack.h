#pragma once

#include <string>
#include <vector>

namespace fulgur::detail {

/// The functions on this thread's call stack, innermost first, such as `nets::Head::forward(at::Tensor const&)`. Those
/// without a symbol are left out: functions that were inlined, or all of a stripped program that exports none. Reads
/// the symbols from the files of the program and its libraries, so it takes milliseconds.
std::vector<std::string> functions_on_stack();

}  // namespace fulgur::detail
