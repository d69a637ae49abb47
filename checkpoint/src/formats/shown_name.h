#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

/// A name from a file, for a message: in quotes, without control characters, truncated to 200 bytes.
inline std::string shown_name(std::string_view name) { return cat("'", escape_controls(name.substr(0, 200)), "'"); }

}  // namespace fulgur::detail
