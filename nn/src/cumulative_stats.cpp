#include "fulgur/nn/cumulative_stats.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include "fulgur/nn/batch_norm.h"

namespace fulgur::nn {

namespace {

// Calls `use` with the name and each layer that updates running statistics.
template <class Layer, class Use>
void each_of(const torch::nn::Module& module, Use use) {
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (auto* const layer = dynamic_cast<Layer*>(item.value().get());
        layer && layer->is_training() && layer->running_mean.defined())
      use(item.key(), *layer);
}

template <class Use>
void each_batch_norm(const torch::nn::Module& module, Use use) {
  each_of<torch::nn::BatchNorm1dImpl>(module, use);
  each_of<torch::nn::BatchNorm2dImpl>(module, use);
  each_of<torch::nn::BatchNorm3dImpl>(module, use);
  each_of<BatchNorm1dImpl>(module, use);
  each_of<BatchNorm2dImpl>(module, use);
  each_of<BatchNorm3dImpl>(module, use);
}

}  // namespace

CumulativeStats::CumulativeStats(const torch::nn::Module& module) {
  each_batch_norm(module, [&](const std::string& name, auto& layer) {
    for (const Tensor& buffer : {layer.running_mean, layer.running_var, layer.num_batches_tracked})
      before_.emplace_back(buffer, buffer.clone());
    layer.reset_running_stats();
    restore_momentum_.emplace_back([&layer, momentum = layer.options.momentum()] { layer.options.momentum(momentum); });
    layer.options.momentum(std::nullopt);
    for (const char* buffer : {"running_mean", "running_var", "num_batches_tracked"})
      names_.push_back(name + "." + buffer);
    statistics_.push_back(layer.running_mean);
    statistics_.push_back(layer.running_var);
  });
}

void CumulativeStats::put_back() {
  const at::NoGradGuard no_grad;
  for (auto& [buffer, value] : before_) buffer.copy_(value);
}

bool CumulativeStats::has_any(const torch::nn::Module& module) {
  bool any = false;
  each_batch_norm(module, [&](const std::string&, const auto&) { any = true; });
  return any;
}

CumulativeStats::~CumulativeStats() {
  for (const auto& restore : restore_momentum_) restore();
}

}  // namespace fulgur::nn
