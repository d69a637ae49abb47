#pragma once

#include <cstdint>
#include <string>

#include "planning/mesh/pipeline_pass.h"
#include "planning/prediction.h"

namespace fulgur::cli {

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
  bool holds_whole = true;     ///< as in `Prediction`
  bool stays_divided = false;  ///< no rank needs the whole module
  bool starts() const { return holds_whole || stays_divided; }
  /// Bytes in a step, by axis.
  double stages_sent = 0, tensor_sent = 0, shard_sent = 0, data_sent = 0;
  double compute_s = 0, tensor_s = 0;  ///< of the busiest rank
  double wait_s = 0;                   ///< of that rank, for other stages
  double shard_s = 0;                  ///< gathers of parameters and sums of gradients, as far as nothing hides them
  /// Averages of gradients as far as backward does not hide them, and exchanges of parameters of several ranks.
  double data_s = 0;
  double optimizer_s = 0, jitter_s = 0;
  double step_s() const { return compute_s + tensor_s + wait_s + shard_s + data_s + optimizer_s + jitter_s; }
  double efficiency = 0, samples_per_s = 0, tokens_per_s = 0, flops_per_s = 0;
  PlannedSaves saves;
};

/// From the figures of the module and of a batch of the shape's pipeline. `alone_s` is the time of forward and backward
/// of a micro-batch on one device.
MeshPrediction predict_mesh(const ModelSize& size, const PipelinePass& pass, double alone_s, const MeshShape& shape,
                            const Mesh& machines, const PlannedRun& run, const HardwareProfile& profile);

/// A mesh with `data` and `shard` alone, which is fsdp: its step is that of a sharding.
MeshPrediction as_mesh(const Prediction& step, const MeshShape& shape);

/// The same with micro-batches of two sizes, of which `share` have the larger one: times and what is sent are those of
/// both, memory is that of the larger one.
MeshPrediction between(const MeshPrediction& smaller, MeshPrediction larger, double share);

}  // namespace fulgur::cli
