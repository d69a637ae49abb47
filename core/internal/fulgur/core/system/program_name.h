#pragma once

#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// How the user calls a program with the verbs of `fulgur::main`, for messages: `my` for `./build/my`. Set by that
/// `main`; until then `trainer`.
FULGUR_API const std::string& program_name();
/// From the first argument of `main`, before any thread starts.
FULGUR_API void set_program_name(const std::string& argument);

}  // namespace fulgur
