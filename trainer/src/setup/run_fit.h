#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpointing/resume.h"
#include "fulgur/trainer/reports.h"
#include "run/services.h"
#include "setup/resume_plan.h"

namespace fulgur::detail {

/// The report of a fit, as it becomes known.
struct FitResult {
  FitReport report = {};
  bool nonfinite = false;              ///< the run was stopped because of NaN or infinity
  std::optional<double> started = {};  ///< the time at which the loop started

  /// Fills in the report at the end of the loop and prints its main values. All ranks must call it.
  void fill(RunState& run, Services& services, const std::string& reason);
  /// The same after an exception, which other ranks may not know of.
  void fill_failed(const RunState& run, Services& services, ExitCode code);
  LatestCheckpoints latest() const { return {.last = report.last_checkpoint, .best = report.best_checkpoint}; }

 private:
  void fill_own(const RunState& run, Services& services);
};

/// Runs a prepared fit from `on_fit_start` to `on_fit_end`: the sanity check unless the run `resumes`, the loop, the
/// final save, and the marker of a finished run. Calls `filled` once the report is complete, also if a signal ended the
/// loop; then it throws Interrupted.
void run_fit(RunState& run, Services& services, bool resumes, FitResult& result, const std::function<void()>& filled);

/// The report of a run that had already finished. `module`, if given, gets the weights of its last checkpoint.
FitReport report_of_finished(const FinishedRun& finished, LightningModule* module);

}  // namespace fulgur::detail
