#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

using torch::nn::LinearOptions;

/// y = x Wᵀ + b, a drop-in replacement for LibTorch's layer, with the same options, names and initial weights. It calls
/// `at::linear` once, as Python's layer does. For inputs with more than two dimensions, LibTorch's layer adds the bias
/// in a second pass over the output, in float32 under autocast, and casts its weight in each call.
class FULGUR_API LinearImpl : public torch::nn::Cloneable<LinearImpl> {
 public:
  explicit LinearImpl(const LinearOptions& options_);
  LinearImpl(int64_t in_features, int64_t out_features) : LinearImpl(LinearOptions(in_features, out_features)) {}
  void reset() override;
  /// Draws both weight and bias uniformly from ±1/√in_features (He et al. 2015 with a = √5, like PyTorch).
  void reset_parameters();
  /// Maps (*, in_features) to (*, out_features). Under autocast the result has autocast's dtype.
  Tensor forward(const Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  LinearOptions options;
  Tensor weight;  ///< (out_features, in_features)
  Tensor bias;    ///< (out_features), undefined without `bias`
};

TORCH_MODULE(Linear);

}  // namespace fulgur::nn
