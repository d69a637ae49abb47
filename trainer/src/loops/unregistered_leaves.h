#pragma once

#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

struct RunState;

/// Finds tensors that the loss depends on and that require gradients, but that neither the module nor an optimizer has:
/// a layer that was not registered is silently not trained. It reports those that occur in both of the first two
/// losses, since a leaf created in a step (an input whose gradient is needed) differs in each. With several devices
/// nothing is checked.
class UnregisteredLeaves {
 public:
  explicit UnregisteredLeaves(const RunState& run) : run_(run) {}
  /// Traverses the graphs of the first two losses. Throws an Error that names what to register.
  void check(const Tensor& loss);

 private:
  const RunState& run_;
  int losses_ = 0;
  std::vector<Tensor> of_first_;  // kept, so that their addresses are not reused
};

}  // namespace fulgur::detail
