#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "planning/mesh/mesh_prediction.h"
#include "planning/plan_search.h"

namespace fulgur::cli {

/// The options of mesh; nullptr if the config's strategy is another one.
const MeshStrategy::Options* mesh_of(const Config& config);

/// The meshes for a number of nodes.
struct MeshPlan {
  /// Each with the micro-batch with the most samples per second that fits; the fastest first, and those that cannot be
  /// or do not fit after the others.
  std::vector<MeshPrediction> meshes;
  /// The fastest that fits, if possible one that can start. nullptr: none fits.
  const MeshPrediction* best() const;
};

/// Finds meshes for a module with `stages()` or a tensor plan. Traces layers as they are needed, and keeps them.
class MeshSearch {
 public:
  /// All of them must outlive it. `alone` has the times of one device. Throws a ConfigError for options of the mesh
  /// that do not go together, or that the plan does not know.
  MeshSearch(TracedModel& model, PlanSearch& alone, const Config& config, const PlannedRun& run,
             const HardwareProfile& profile);

  /// Whether the module can be divided at all.
  bool can_divide() const { return !layers_.empty() || has_tensor_plan_; }
  /// The mesh and the batch size of a config whose strategy is `mesh`; nullopt: it is another one, or
  /// has the axis `data` only, and is `ddp`. Throws a ConfigError
  /// for a module that it cannot divide.
  std::optional<MeshPrediction> configured(const Mesh& machines);
  /// All meshes with ranks along `tensor` or `pipeline`. Those along `tensor` are in one node, and those along `shard`
  /// are powers of two. With `data` and `shard` alone, a mesh is a sharding, which `PlanSearch` finds.
  MeshPlan search(const Mesh& machines);

 private:
  MeshPrediction predict(const MeshShape& shape, int64_t micro_batch, const Mesh& machines);
  MeshPrediction best_batch(MeshShape shape, const Mesh& machines);
  /// Adds the meshes in which powers of two of the ranks along `data` are along `shard`.
  void search_shards(MeshShape shape, const Mesh& machines, MeshPlan& plan);
  /// Sets what the global batch leaves to micro-batches or accumulation. The reason if it leaves no whole number.
  std::string divide_global_batch(MeshShape& shape, int64_t micro_batch) const;
  const TracedLayers& traced(const MeshShape& shape, int64_t samples);
  const detail::StagePlan& stages(const MeshShape& shape);
  const PipelinePass& pass(const MeshShape& shape, int64_t micro_batch, const Mesh& machines);
  double alone_s(int64_t samples);

  TracedModel& model_;
  PlanSearch& alone_;
  const PlannedRun& run_;
  const HardwareProfile& profile_;
  std::optional<MeshStrategy::Options> given_;
  MeshStrategy::Options options_;  ///< those of the config, or defaults
  std::vector<std::string> layers_;
  bool has_tensor_plan_ = false;
  std::map<std::tuple<int64_t, bool, int64_t>, TracedLayers> traced_;  ///< by ranks, in layers, samples
  std::map<std::pair<int64_t, int64_t>, detail::StagePlan> stages_;    ///< by ranks and stages of a rank
  std::map<PassKey, PipelinePass> passes_;
  std::map<int64_t, double> alone_s_;  ///< by samples
};

}  // namespace fulgur::cli
