#include "failure_report.h"

#include "failure.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "report_file.h"

namespace fulgur::cli {

void FailureReport::write(bool only_if_none_was_written) const {
  if (!command_.report || (only_if_none_was_written && time_of_file() != file_time_)) return;
  const Failure failure = current_failure();
  try {
    write_report(*command_.report, failure_json(command_.verb, failure.code, failure.message, run_dir_, fit_));
  } catch (const Error& error) {
    log::error(error.what());  // the run's own error ends the program
  }
}

std::filesystem::file_time_type FailureReport::time_of_file() const {
  std::error_code none;
  return command_.report ? std::filesystem::last_write_time(*command_.report, none) : std::filesystem::file_time_type();
}

}  // namespace fulgur::cli
