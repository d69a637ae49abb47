#pragma once

#include <string>

#include "fulgur/core/errors.h"

namespace fulgur::cli {

/// What ended a verb.
struct Failure {
  std::string message;
  ExitCode code = ExitCode::other;
};

/// Of the exception that is being handled, for people.
Failure current_failure();

}  // namespace fulgur::cli
