#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/lora.h"

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
  /// Registers an adapter with these values; `nn::add_lora` chooses them, and describes what the layer computes then.
  void add_lora(const LoraOptions& adapter, const Tensor& a, const Tensor& b);

  LinearOptions options;
  Tensor weight;          ///< (out_features, in_features)
  Tensor bias;            ///< (out_features), undefined without `bias`
  LoraOptions lora;       ///< of the adapter, if there is one
  Tensor lora_A, lora_B;  ///< (rank, in_features) and (out_features, rank), undefined without an adapter
};

TORCH_MODULE(Linear);

}  // namespace fulgur::nn
