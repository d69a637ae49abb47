#pragma once

#include <cstdint>
#include <string>

#include "fulgur/core/options/config_node.h"

namespace fulgur {

/// The message of the error for a terminal of this width: each problem with the line of the config, or the argument,
/// that it concerns, and a caret under the key or value. Control characters are escaped, and a line that is too long is
/// cut around the caret. Problems whose line is not known have one line, as in the message.
FULGUR_API std::string problem_excerpts(const BadConfig& error, int64_t columns);

}  // namespace fulgur
