#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// Root mean square normalisation over the last dimension (Zhang and Sennrich 2019): x / √(mean(x²) + eps) · weight.
/// The weight may have a wider dtype than the input, also on CUDA (`keep_norm_fp32`); the result then has the dtype of
/// the input.
class FULGUR_API RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(int64_t width, double eps = 1e-6);
  void reset() override;
  void reset_parameters();
  /// Maps (*, width) to the same shape and to the dtype of the input.
  Tensor forward(const Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  Tensor weight;  ///< (width)

 private:
  int64_t width_;
  double eps_;
};

TORCH_MODULE(RMSNorm);

}  // namespace fulgur::nn
