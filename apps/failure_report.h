#pragma once

#include <c10/util/ScopeExit.h>

#include <filesystem>
#include <optional>

#include "command_line.h"
#include "fulgur/trainer/trainer.h"

namespace fulgur::cli {

/// The report of a run that ends with an error, in place of the normal one.
class FailureReport {
 public:
  explicit FailureReport(const CommandLine& command) : command_(command), file_time_(time_of_file()) {}
  /// The report contains what the trainer knows about the run. `trainer` lives until the run is over.
  auto watch(const Trainer& trainer) {
    return c10::make_scope_exit([this, &trainer] {
      run_dir_ = trainer.log_dir();
      fit_ = trainer.last_fit();
    });
  }
  /// Writes the report for the current exception. A launcher knows less than the rank that it started, whose report is
  /// kept.
  void write(bool only_if_none_was_written) const;

 private:
  std::filesystem::file_time_type time_of_file() const;
  const CommandLine& command_;
  std::filesystem::file_time_type file_time_;
  std::filesystem::path run_dir_;
  std::optional<FitReport> fit_;
};

}  // namespace fulgur::cli
