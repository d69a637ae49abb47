#include "failure_report.h"

#include "failure.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "report_file.h"

namespace fulgur::cli {

void FailureReport::write(bool of_launcher) const {
  if (!command_.report) return;
  const Failure failure = current_failure();
  const bool was_written = of_launcher && time_of_file() != file_time_;
  try {
    write_report(*command_.report, was_written
                                       ? with_failure(*command_.report, failure.code, failure.message)
                                       : failure_json(command_.verb, failure.code, failure.message, run_dir_, fit_));
  } catch (const Error& error) {
    log::error(error.what());  // the run's own error ends the program
  }
}

std::filesystem::file_time_type FailureReport::time_of_file() const {
  std::error_code none;
  return command_.report ? std::filesystem::last_write_time(*command_.report, none) : std::filesystem::file_time_type();
}

}  // namespace fulgur::cli
