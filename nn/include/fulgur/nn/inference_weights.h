#pragma once

#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace torch::nn {
class Module;
}

namespace fulgur::nn {

/// While it lives, weights of linear layers (ours and LibTorch's) are transposed in memory: their shapes, values and
/// names stay, only their strides change. Products with a batch of up to some 128 rows are then up to twice as fast on
/// the CPU, while gradients of a layer's input would be slower. The Trainer does this in `validate`, `test` and
/// `predict` on the CPU in precision 32-true. Results with batches of fewer than 16 rows may differ in the last bits.
///
/// It takes float32 weights on the CPU of 2¹⁴ to 2¹⁹ values for at most 512 outputs that no other layer shares, and
/// none on a processor without AVX-512: others were not faster, or not measured. What is written into the weights
/// meanwhile is kept. Not thread-safe; no layer may be in use while it begins or ends.
class FULGUR_API InferenceWeights {
 public:
  explicit InferenceWeights(torch::nn::Module& module);
  /// Restores the order in memory of the weights that still have the other one.
  ~InferenceWeights();
  InferenceWeights(const InferenceWeights&) = delete;
  InferenceWeights& operator=(const InferenceWeights&) = delete;
  /// The weights whose order in memory has changed.
  const std::vector<Tensor>& weights() const { return weights_; }

 private:
  std::vector<Tensor> weights_;
};

}  // namespace fulgur::nn
