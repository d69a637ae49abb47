#include "fulgur/nn/norm_layers.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/rms_norm.h"
#include "fulgur/nn/sync_norm.h"

namespace fulgur::nn {
namespace {

namespace tn = torch::nn;

template <class... Layers>
bool is_one_of(const tn::Module& module) {
  return (dynamic_cast<const Layers*>(&module) || ...);
}

void add(std::vector<NormLayer>& all, const std::string& name, tn::Module& module) {
  const bool casts =
      is_one_of<SyncableNorm, LayerNormImpl, GroupNormImpl, RMSNormImpl, tn::BatchNorm1dImpl, tn::BatchNorm2dImpl,
                tn::BatchNorm3dImpl, tn::InstanceNorm1dImpl, tn::InstanceNorm2dImpl, tn::InstanceNorm3dImpl>(module);
  if (casts || is_one_of<tn::LayerNormImpl, tn::GroupNormImpl>(module)) all.push_back({name, &module, casts});
}

}  // namespace

std::vector<NormLayer> norm_layers(tn::Module& module) {
  std::vector<NormLayer> all;
  add(all, "", module);
  for (const auto& child : module.named_modules("", /*include_self=*/false)) add(all, child.key(), *child.value());
  return all;
}

}  // namespace fulgur::nn
