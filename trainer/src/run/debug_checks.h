#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "run/run.h"

namespace fulgur::detail {

/// What `trainer.debug: true` checks in each step, beside autograd's anomaly mode. Every check waits for the device.
class DebugChecks {
 public:
  explicit DebugChecks(Run& run) : run_(run) {}
  /// All entries have the same number of samples, lie on the run's device, and floating ones are finite.
  void check_batch(const Batch& batch);
  /// No entry was written in place since `check_batch`: its memory may be the data set's.
  void check_batch_unwritten(const Batch& batch);
  /// A NonFiniteError for NaN and infinity.
  void check_loss(const Tensor& loss);
  /// Gradients lie where their parameters do, have their shape, and are finite; a parameter that got none is told once.
  void check_gradients();
  /// Finite after the step.
  void check_parameters();

 private:
  Run& run_;
  std::set<std::string> without_gradient_;
  std::vector<std::pair<const void*, int64_t>> versions_;  // of the batch's tensors
};

}  // namespace fulgur::detail
