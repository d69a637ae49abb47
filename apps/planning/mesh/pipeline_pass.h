#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/strategies/mesh.h"
#include "planning/mesh/mesh_memory.h"
#include "planning/prediction.h"

namespace fulgur::cli {

/// The axes of a mesh, and how micro-batches pass through it.
struct MeshShape {
  int64_t data = 1, shard = 1, tensor = 1, pipeline = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int64_t stages_per_rank = 1;
  int64_t micro_batches = 1;
  int64_t accumulate = 1;
  int64_t ranks() const { return shares() * tensor * pipeline; }
  /// Of the data, each of which the ranks along `tensor` and `pipeline` compute together.
  int64_t shares() const { return data * shard; }
  /// Of the pipeline, for `count` micro-batches.
  detail::PipelineShape pipeline_shape(int64_t count) const {
    return {.ranks = pipeline, .stages_per_rank = stages_per_rank, .micro_batches = count};
  }
  /// Whether a step gathers parameters in units, and divides their gradients, while it computes.
  bool steps_in_units() const { return shard > 1 && pipeline == 1; }
  std::string text() const;
};

/// Whether ranks at two places along `pipeline` are on different nodes, for any share of the data.
bool are_apart(int64_t a, int64_t b, const MeshShape& shape, const Mesh& run);

/// All that a `PipelinePass` depends on, for one module, run and profile.
struct PassKey {
  int64_t tensor, pipeline, stages_per_rank, micro_batches, accumulate, samples;
  PipelineSchedule schedule;
  Mesh tensor_ranks;             ///< where the ranks along `tensor` are
  std::vector<bool> apart = {};  ///< for each stage but the first: whether the one before may be on another node
  auto operator<=>(const PassKey&) const = default;
};
PassKey pass_key(const MeshShape& shape, int64_t samples, const Mesh& machines);

/// A batch of a window on the ranks along `pipeline`, at the first place along `tensor`.
struct PipelinePass {
  struct Rank {
    RankBytes bytes;
    double peak = 0;                         ///< bytes of activations, and gradients of parameters
    double activations = 0;                  ///< the most of them alone
    double compute_s = 0, exchange_s = 0;    ///< of a micro-batch; exchanges are those along `tensor`
    double backward_s = 0;                   ///< the part of `compute_s` in backward
    double tensor_sent = 0, stage_sent = 0;  ///< bytes of a micro-batch, along `tensor` and to other stages
  };
  int64_t samples = 0, tokens = 0;  ///< of a micro-batch
  double batch_bytes = 0;           ///< of a micro-batch
  std::vector<Rank> ranks;
  double flops = 0;    ///< of a micro-batch, of all ranks
  double batch_s = 0;  ///< with a pipeline: from the first action to the last one
};

/// `plan` has stages: without a pipeline, one of one layer.
PipelinePass pass_of(const PassKey& key, const ModelSize& size, const TracedLayers& traced,
                     const detail::StagePlan& plan, const PlannedRun& run, const HardwareProfile& profile);

}  // namespace fulgur::cli
