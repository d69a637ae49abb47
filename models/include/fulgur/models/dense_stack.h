#pragma once

#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// Fully connected layers with ReLU and dropout after each layer except the last. The parameters are `layer0.weight`,
/// ….
class FULGUR_API DenseStack : public torch::nn::Module {
 public:
  /// `widths` are those of the input, the hidden layers and the output. Throws a ConfigError for fewer than two, or for
  /// widths below 1.
  explicit DenseStack(const std::vector<int64_t>& widths, double dropout = 0.0);
  /// Maps (N, widths.front()) to (N, widths.back()).
  Tensor forward(const Tensor& input);
  size_t size() const { return layers_.size(); }
  /// One layer, with what follows it.
  Tensor layer(size_t index, const Tensor& input);

 private:
  std::vector<nn::Linear> layers_;
  double dropout_;
};

/// Returns `batch` as (N, features). Throws a ConfigError that names `component` and its option if a sample of `batch`
/// has a different number of values, or if `batch` is not floating-point.
FULGUR_API Tensor flatten_samples(const Tensor& batch, int64_t features, const char* component, const char* option);

}  // namespace fulgur
