#pragma once

#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// Whether `name` matches the pattern. `*` stands for any characters, including dots, `?` for one character, and `[ab]`
/// for one of the characters listed.
FULGUR_API bool matches_pattern(const std::string& pattern, const std::string& name);

}  // namespace fulgur
