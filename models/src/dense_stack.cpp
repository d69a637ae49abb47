#include "fulgur/models/dense_stack.h"

#include <ATen/ops/dropout.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "parts/images.h"

namespace fulgur {

DenseStack::DenseStack(const std::vector<int64_t>& widths, double dropout) : dropout_(dropout) {
  if (widths.size() < 2)
    throw ConfigError(
        cat("[models.DenseStack] at least an input and an output width are needed; got ", widths.size(), "."));
  for (const int64_t width : widths)
    if (width < 1) throw ConfigError(cat("[models.DenseStack] widths must be at least 1; got ", width, "."));
  for (size_t i = 0; i + 1 < widths.size(); ++i)
    layers_.push_back(register_module(cat("layer", i), nn::Linear(widths[i], widths[i + 1])));
}

Tensor DenseStack::forward(const Tensor& input) {
  Tensor x = input;
  for (size_t i = 0; i < layers_.size(); ++i) x = layer(i, x);
  return x;
}

Tensor DenseStack::layer(size_t index, const Tensor& input) {
  Tensor x = layers_[index]->forward(input);
  if (index + 1 == layers_.size()) return x;
  x = x.relu_();
  return dropout_ > 0 && is_training() ? at::dropout(x, dropout_, true) : x;
}

Tensor flatten_samples(const Tensor& batch, int64_t features, const char* component, const char* option) {
  const int64_t values = batch.dim() < 2 || batch.size(0) == 0 ? -1 : batch.numel() / batch.size(0);
  if (values != features)
    throw ConfigError(cat("[models.", component, "] a sample must have ", option, " = ", features,
                          " values; got a batch of shape ", shape_text(batch.sizes()), ". Set model.init_args.", option,
                          " to match the data."));
  detail::check_floating(batch, component);
  return batch.flatten(1);
}

}  // namespace fulgur
