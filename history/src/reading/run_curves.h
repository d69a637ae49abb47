#pragma once

#include <filesystem>
#include <vector>

#include "fulgur/history/run.h"
#include "reading/curve.h"

namespace fulgur::history {

/// A run with its curves.
struct RunCurves {
  Run run;
  std::vector<Curve> curves;  ///< of `run.metrics`, in their order
  StepMap epochs;             ///< from steps to epochs
  StepMap times;              ///< from steps to seconds of training, from the checkpoints; may be empty
};

/// Reads the log once. Throws as read_run does.
RunCurves read_curves(const std::filesystem::path& folder);

}  // namespace fulgur::history
