#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

using torch::nn::GroupNormOptions;
using torch::nn::LayerNormOptions;

/// Layer normalisation over the last dimensions (Ba et al. 2016). It is a drop-in replacement for LibTorch's layer. Its
/// weights may have a wider dtype than the input, also on CUDA (`keep_norm_fp32`), and the bias may be absent.
class FULGUR_API LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl> {
 public:
  explicit LayerNormImpl(LayerNormOptions options_, bool with_bias = true);
  LayerNormImpl(std::vector<int64_t> normalized_shape) : LayerNormImpl(LayerNormOptions(std::move(normalized_shape))) {}
  void reset() override;
  void reset_parameters();
  /// Maps (*, normalized_shape) to the same shape and to the dtype of the input.
  Tensor forward(const Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  LayerNormOptions options;
  Tensor weight;  ///< normalized_shape; undefined without `elementwise_affine`
  Tensor bias;    ///< normalized_shape; undefined without `elementwise_affine` or bias

 private:
  bool with_bias_;
};

/// Group normalisation (Wu and He 2018). It is a drop-in replacement for LibTorch's layer. Its weights may have a wider
/// dtype than the input.
class FULGUR_API GroupNormImpl : public torch::nn::Cloneable<GroupNormImpl> {
 public:
  explicit GroupNormImpl(const GroupNormOptions& options_);
  GroupNormImpl(int64_t num_groups, int64_t num_channels) : GroupNormImpl(GroupNormOptions(num_groups, num_channels)) {}
  void reset() override;
  void reset_parameters();
  /// Maps (N, C, …) to the same shape and to the dtype of the input.
  Tensor forward(const Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  GroupNormOptions options;
  Tensor weight;  ///< (C), undefined without `affine`
  Tensor bias;    ///< (C), undefined without `affine`
};

TORCH_MODULE(LayerNorm);
TORCH_MODULE(GroupNorm);

}  // namespace fulgur::nn
