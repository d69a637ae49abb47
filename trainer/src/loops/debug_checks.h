#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "run/run_state.h"

namespace fulgur::detail {

/// The checks of `trainer.debug: true` in each step, in addition to autograd's anomaly mode. Every check synchronizes
/// with the device.
class DebugChecks {
 public:
  explicit DebugChecks(RunState& run) : run_(run) {}
  /// Checks that all entries have the same number of samples and are on the run's device, and that floating-point
  /// entries are finite.
  void check_batch(const Batch& batch);
  /// Checks that no entry was written in place since `check_batch`: its memory may belong to the data set.
  void check_batch_unwritten(const Batch& batch);
  /// Throws a NonFiniteError for NaN and infinity.
  void check_loss(const Tensor& loss);
  /// Checks that gradients are on the device of their parameters, have their shape, and are finite; parameters without
  /// a gradient are reported once.
  void check_gradients();
  /// Checks that parameters are finite after the step.
  void check_parameters();

 private:
  RunState& run_;
  std::set<std::string> without_gradient_;
  std::vector<std::pair<const void*, int64_t>> versions_;  // of the batch's tensors
};

}  // namespace fulgur::detail
