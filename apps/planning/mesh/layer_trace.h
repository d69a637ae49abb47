#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/core/contracts/tensor_plan.h"
#include "fulgur/strategies/traced_tensor_rank.h"
#include "planning/traced_model.h"

namespace fulgur::cli {

/// A layer of a chain, or a whole step, of one rank and one micro-batch. Peaks are beside what there is before.
struct LayerTrace {
  std::vector<Operation> operations;
  std::vector<detail::TracedExchange> forward_exchanges, backward_exchanges;  ///< along `tensor`
  double kept_bytes = 0;      ///< from the end of its forward until its backward, with what it returns
  double output_bytes = 0;    ///< of what it returns
  double gradient_bytes = 0;  ///< of its parameters
  double forward_peak = 0;
  double backward_peak = 0;                 ///< without gradients of parameters
  double backward_peak_with_gradients = 0;  ///< if there are none before
};

/// What a rank at the first place along `tensor` computes of a micro-batch.
struct TracedLayers {
  int64_t samples = 0;
  int64_t tokens = 0;      ///< 0: the model counts none
  double batch_bytes = 0;  ///< of the micro-batch
  std::vector<LayerTrace> layers;
  std::unordered_map<const void*, double> parameter_bytes;  ///< of this rank's parts, by the parameter's `TensorImpl`
};

/// What the ranks along `tensor` divide.
struct TensorDivision {
  int64_t ranks = 1;
  std::map<std::string, TensorSplit> plan = {};
};

/// Traces the layers of `stages()`, the loss with the last of them; or, as one layer, `training_step`. Throws a
/// ConfigError for a module that the ranks cannot divide so.
TracedLayers trace_layers(TracedModel& model, const TensorDivision& division, bool in_layers, int64_t samples);

}  // namespace fulgur::cli
