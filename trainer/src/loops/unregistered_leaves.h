#pragma once

#include <vector>

#include "fulgur/core/tensor.h"

namespace fulgur::detail {

class Run;

/// Finds tensors that the loss depends on and that require gradients, but that neither the module nor an optimizer has:
/// a layer that was not registered learns nothing, in silence. Those that both of the first two losses have are meant:
/// a leaf that a step makes for itself (an input whose gradient is wanted) is another in each. Not looked for over
/// several devices.
class UnregisteredLeaves {
 public:
  explicit UnregisteredLeaves(const Run& run) : run_(run) {}
  /// Walks over the graphs of the first two losses. Throws an Error that names what to register.
  void check(const Tensor& loss);

 private:
  const Run& run_;
  int losses_ = 0;
  std::vector<Tensor> of_first_;  // kept, so that no other tensor has their addresses
};

}  // namespace fulgur::detail
