#pragma once

#include <string>

namespace fulgur::cli {

/// Writes to stdout at once. A reader that has gone away (`| head -1`) is not an error.
void print(const std::string& text);

}  // namespace fulgur::cli
