#include "fulgur/nn/cumulative_stats.h"

#include <torch/nn/modules/batchnorm.h>

#include "fulgur/nn/batch_norm.h"

namespace fulgur::nn {

template <class Layer>
bool CumulativeStats::add(const std::string& name, torch::nn::Module& module) {
  auto* const layer = dynamic_cast<Layer*>(&module);
  if (!layer) return false;
  if (!layer->is_training() || !layer->running_mean.defined()) return true;
  layer->reset_running_stats();
  restore_momentum_.emplace_back([layer, momentum = layer->options.momentum()] { layer->options.momentum(momentum); });
  layer->options.momentum(std::nullopt);
  const std::string prefix = name.empty() ? "" : name + ".";
  for (const char* buffer : {"running_mean", "running_var", "num_batches_tracked"}) names_.push_back(prefix + buffer);
  statistics_.push_back(layer->running_mean);
  statistics_.push_back(layer->running_var);
  return true;
}

CumulativeStats::CumulativeStats(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    torch::nn::Module& layer = *item.value();
    add<torch::nn::BatchNorm1dImpl>(item.key(), layer) || add<torch::nn::BatchNorm2dImpl>(item.key(), layer) ||
        add<torch::nn::BatchNorm3dImpl>(item.key(), layer) || add<BatchNorm1dImpl>(item.key(), layer) ||
        add<BatchNorm2dImpl>(item.key(), layer) || add<BatchNorm3dImpl>(item.key(), layer);
  }
}

CumulativeStats::~CumulativeStats() {
  for (const auto& restore : restore_momentum_) restore();
}

}  // namespace fulgur::nn
