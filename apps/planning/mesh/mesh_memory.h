#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/strategies/pipeline_actions.h"
#include "fulgur/strategies/stage_plan.h"
#include "planning/mesh/layer_trace.h"

namespace fulgur::cli {

/// The most bytes that a rank of a pipeline has at once of activations and of the gradients of its parameters, if it
/// executes `actions`. `received_gradients` says for each which gradients that it has sent have arrived.
/// `has_gradients`: whether an earlier batch of the window has made all gradients.
double peak_of_actions(const std::vector<detail::PipelineAction>& actions,
                       const std::vector<int64_t>& received_gradients, const detail::StagePlan& plan,
                       const std::vector<LayerTrace>& layers, bool has_gradients);

/// Bytes of a rank of the pipeline, at the first place along `tensor`, before ranks along `shard` divide them.
struct RankBytes {
  double parameters = 0, gradients = 0;
  double stepped = 0;  ///< gradients of parameters that this rank steps
  double shared = 0;   ///< of parameters that other ranks of the pipeline read, too
  /// Exchanges along `shard` that get all parameters, and those that divide the gradients that this rank steps.
  int64_t units = 0, stepped_units = 0;
  double two_units = 0;  ///< the largest two
  double largest_stepped_unit = 0;
};
/// Of each of the `ranks` of the pipeline. `units` are those of the module.
std::vector<RankBytes> bytes_of_ranks(const detail::StagePlan& plan, const TracedLayers& traced,
                                      const std::vector<PlannedUnit>& units, int64_t ranks);

/// What the first layer of a stage gets from the stage before, for a micro-batch.
inline double input_bytes(const std::vector<LayerTrace>& layers, size_t begin) {
  return begin == 0 ? 0 : layers[begin - 1].output_bytes;
}

}  // namespace fulgur::cli
