#pragma once

#include <string>
#include <vector>

#include "reading/run_curves.h"

namespace fulgur::history {

/// Name, status, progress, best value and time of each run.
std::string summary_section(const std::vector<RunCurves>& runs);
/// The last and the best values of the metrics.
std::string metrics_section(const std::vector<RunCurves>& runs);
std::string checkpoints_section(const std::vector<RunCurves>& runs);
/// What differs between the runs, and the configs.
std::string config_section(const std::vector<RunCurves>& runs);
std::string system_section(const std::vector<RunCurves>& runs);

}  // namespace fulgur::history
