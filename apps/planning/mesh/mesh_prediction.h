#pragma once

#include <cstdint>
#include <string>

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
  std::string text() const;
};

/// A step of a mesh. Bytes and times are those of the rank with the most.
struct MeshPrediction {
  MeshShape shape;
  Mesh machines;
  int64_t micro_batch = 0;  ///< samples
  int64_t batch_size = 0;   ///< samples of a share of the data, in one batch of a window
  PlannedMemory memory;
  int64_t fullest = 0;   ///< place along `pipeline` of the rank with this memory
  double limit = 0;      ///< bytes that tensors may have
  std::string obstacle;  ///< why steps do not run; empty if they do
  bool lacks_memory = false;
  bool holds_whole = true;  ///< as in `Prediction`
  /// Bytes in a step, by axis.
  double stages_sent = 0, tensor_sent = 0, shard_sent = 0, data_sent = 0;
  double compute_s = 0, tensor_s = 0;  ///< of the busiest rank
  double wait_s = 0;                   ///< of that rank, for other stages
  double shard_s = 0;                  ///< gathers of parameters and sums of gradients, as far as nothing hides them
  double data_s = 0;  ///< averages of gradients, and exchanges of parameters of several ranks; nothing hides them
  double optimizer_s = 0, jitter_s = 0;
  double step_s() const { return compute_s + tensor_s + wait_s + shard_s + data_s + optimizer_s + jitter_s; }
  double efficiency = 0, samples_per_s = 0, tokens_per_s = 0, flops_per_s = 0;
  PlannedSaves saves;
};

/// What a mesh is predicted from.
struct MeshModel {
  const ModelSize& size;
  const TracedLayers& traced;
  const detail::StagePlan& plan;  ///< with stages: without a pipeline, one of one layer
  double alone_s = 0;             ///< forward and backward of a micro-batch on one device
};

MeshPrediction predict_mesh(const MeshModel& model, const MeshShape& shape, const Mesh& machines, const PlannedRun& run,
                            const HardwareProfile& profile);

/// A mesh with `data` and `shard` alone, which is fsdp: its step is that of a sharding.
MeshPrediction as_mesh(const Prediction& step, const MeshShape& shape);

/// The same with micro-batches of two sizes, of which `share` have the larger one: times and what is sent are those of
/// both, memory is that of the larger one.
MeshPrediction between(const MeshPrediction& smaller, MeshPrediction larger, double share);

}  // namespace fulgur::cli
