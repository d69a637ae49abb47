#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/errors.h"

namespace fulgur::cli {

/// What ended a verb.
struct Failure {
  std::string message;
  ExitCode code = ExitCode::other;
};

/// For the current exception, for display.
Failure current_failure();

/// One block on stderr, of the process with this name (empty: without). The lines are ours; their contents may come
/// from anywhere and must not reach the terminal as control characters.
void print_error(std::string_view process, std::string_view message);

}  // namespace fulgur::cli
