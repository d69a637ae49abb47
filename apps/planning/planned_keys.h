#pragma once

#include <string>

#include "planning/mesh/mesh_prediction.h"
#include "planning/prediction.h"

namespace fulgur::cli {

/// The keys that a config needs for the ranks, the strategy and the batch size of a prediction: indented YAML after a
/// heading. With a `global_batch` of the run, which decides the accumulation, that has no key.
std::string planned_keys(const Prediction& one, const PlannedRun& run);
std::string planned_keys(const MeshPrediction& one, const PlannedRun& run);

}  // namespace fulgur::cli
