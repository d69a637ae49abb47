#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planning/mesh/mesh_search.h"

namespace fulgur::cli {

/// The meshes of a plan, for each number of nodes.
struct MeshReport {
  std::vector<std::optional<MeshPrediction>> configured;  ///< the config's mesh
  std::vector<MeshPlan> plans;
};

/// Tables and reasons. `fastest`: samples per second of the best sharding, for each number of nodes; 0: none fits.
std::string mesh_text(const MeshReport& report, const PlannedRun& run, const std::vector<double>& fastest);
nlohmann::ordered_json json_of_mesh(const MeshPrediction& one);

}  // namespace fulgur::cli
