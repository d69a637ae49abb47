#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/strategies/launcher.h"

namespace fulgur::cli {

/// The error that ended a verb.
struct Failure {
  std::string message;
  ExitCode code = ExitCode::other;
  std::string console = {};  ///< what to print instead of the message, if it is not empty
};

/// Processes that were launched have failed. Their messages, which this error contains, are already on the console.
class LaunchFailure : public Error {
 public:
  explicit LaunchFailure(const LaunchReport& report)
      : Error(report.message, static_cast<ExitCode>(report.exit_code)), console_(report.console) {}
  const std::string& console() const { return console_; }

 private:
  std::string console_;
};

/// Describes the current exception for display.
Failure current_failure();

/// Prints one block on stderr that begins with the name of the process, if it is not empty. The contents may come from
/// anywhere, so control characters in them must not reach the terminal.
void print_error(std::string_view process, std::string_view message);

}  // namespace fulgur::cli
