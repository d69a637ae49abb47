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
  /// Writes the report for the current exception. A launcher keeps the report of rank 0, which knows more; but if rank
  /// 0 only noticed that another rank failed, the exit code and the error become those of the group.
  void write(bool of_launcher) const;

 private:
  std::filesystem::file_time_type time_of_file() const;
  const CommandLine& command_;
  std::filesystem::file_time_type file_time_;
  std::filesystem::path run_dir_;
  std::optional<FitReport> fit_;
};

}  // namespace fulgur::cli
