#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/outputs.h"

namespace fulgur::detail {

/// This rank's predictions for one loader.
struct PredictedShare {
  Outputs outputs;  ///< one row per sample, on the CPU, contiguous
  int64_t samples = 0;
  bool in_turns = false;  ///< the rank reads every world_size-th sample, starting at its own rank
  /// By name, one text per sample: entries of the batches by which a prediction is joined to its input, such as `file`.
  std::vector<std::pair<std::string, std::vector<std::string>>> texts = {};
};

/// The outputs of a loader's batches, as they arrive.
class PredictedBatches {
 public:
  /// Throws an Error if the outputs do not have one row per sample, or differ in kind from the first batch's. If there
  /// are outputs, the texts of `batch` and its `index` (N) int64 are kept as well, except those that have the name of
  /// an output.
  void add(const Outputs& outputs, int64_t samples, const Batch& batch = {});
  /// All rows as one tensor per output. Releases the batches one by one, so that no second copy of everything is held.
  PredictedShare take(bool in_turns);

 private:
  void add_texts(const Outputs& outputs, int64_t samples, const Batch& batch);

  std::vector<std::pair<std::string, std::vector<Tensor>>> columns_;
  std::vector<std::pair<std::string, std::vector<std::string>>> texts_;
  int64_t batches_ = 0, samples_ = 0;
};

}  // namespace fulgur::detail
