#include "fulgur/nn/sync_norm.h"

#include <torch/nn/modules/batchnorm.h>

namespace fulgur::nn {

SyncableNorm::~SyncableNorm() = default;

namespace {

bool is_libtorch_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module);
}

int64_t switch_over(torch::nn::Module& module, Collectives* collectives) {
  auto* norm = dynamic_cast<SyncableNorm*>(&module);
  if (!norm) return 0;
  norm->sync_over(collectives);
  return 1;
}

}  // namespace

// modules(true) and named_modules("", true) would reject a module that is not owned by a shared_ptr.
int64_t sync_norms_over(torch::nn::Module& module, Collectives* collectives) {
  int64_t count = switch_over(module, collectives);
  for (const auto& child : module.modules(/*include_self=*/false)) count += switch_over(*child, collectives);
  return count;
}

std::vector<std::string> unsyncable_batch_norms(const torch::nn::Module& module) {
  std::vector<std::string> names;
  if (is_libtorch_batch_norm(module)) names.emplace_back();
  for (const auto& child : module.named_modules("", /*include_self=*/false))
    if (is_libtorch_batch_norm(*child.value())) names.push_back(child.key());
  return names;
}

}  // namespace fulgur::nn
