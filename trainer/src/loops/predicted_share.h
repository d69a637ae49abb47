#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/outputs.h"

namespace fulgur::detail {

/// What this rank has predicted of one loader.
struct PredictedShare {
  Outputs outputs;  ///< one row per sample, on the CPU, contiguous
  int64_t samples = 0;
  bool in_turns = false;  ///< the rank reads every world_size-th sample, beginning with its own number
};

/// The outputs of a loader's batches, as they come.
class PredictedBatches {
 public:
  /// Throws an Error if the outputs do not have one row per sample, or are not those of the first batch.
  void add(const Outputs& outputs, int64_t samples);
  /// All rows as one tensor per output. Gives up the batches one by one, so that no second copy of all is held.
  PredictedShare take(bool in_turns);

 private:
  std::vector<std::pair<std::string, std::vector<Tensor>>> columns_;
  int64_t batches_ = 0, samples_ = 0;
};

}  // namespace fulgur::detail
