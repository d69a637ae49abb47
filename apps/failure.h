#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// The error that ended a verb.
struct Failure {
  std::string message;
  ExitCode code = ExitCode::other;
};

/// Describes the current exception for display.
Failure current_failure();

/// Prints one block on stderr that begins with the name of the process, if it is not empty. The contents may come from
/// anywhere, so control characters in them must not reach the terminal.
void print_error(std::string_view process, std::string_view message);

}  // namespace fulgur::cli
