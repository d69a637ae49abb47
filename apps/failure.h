#pragma once

#include <string>

#include "fulgur/core/errors.h"

namespace fulgur::cli {

/// What ended a verb.
struct Failure {
  std::string message;
  ExitCode code = ExitCode::other;
};

/// For the current exception, for display.
Failure current_failure();

}  // namespace fulgur::cli
