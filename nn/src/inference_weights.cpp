#include "fulgur/nn/inference_weights.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <exception>
#include <map>

#include "fulgur/core/device/cpu_matmul_rule.h"
#include "fulgur/nn/linear.h"

namespace fulgur::nn {
namespace {

// docs/performance.md has the figures. Larger weights, and batches of two or three rows with more outputs, are slower;
// smaller weights gain less than a microsecond.
constexpr int64_t kLeastValues = 1 << 14, kMostValues = 1 << 19, kMostOutputs = 512;

Tensor linear_weight(torch::nn::Module& module) {
  if (const auto* ours = dynamic_cast<LinearImpl*>(&module)) return ours->weight;
  if (const auto* theirs = dynamic_cast<torch::nn::LinearImpl*>(&module)) return theirs->weight;
  return {};
}

bool is_turned(const Tensor& weight) { return weight.stride(0) == 1 && weight.stride(1) == weight.size(0); }

bool gains(const Tensor& weight) {
  return weight.defined() && weight.is_cpu() && weight.layout() == at::kStrided && weight.scalar_type() == at::kFloat &&
         weight.dim() == 2 && weight.numel() >= kLeastValues && weight.numel() <= kMostValues && weight.size(0) > 1 &&
         weight.size(0) <= kMostOutputs && weight.size(1) > 1 && weight.is_contiguous() && !weight.is_inference();
}

}  // namespace

InferenceWeights::InferenceWeights(torch::nn::Module& module) {
  if (!fulgur::detail::this_cpu().avx512) return;
  std::vector<torch::nn::Module*> all{&module};
  for (const auto& one : module.modules(/*include_self=*/false)) all.push_back(one.get());
  std::map<const at::TensorImpl*, int> owners;  // an embedding with the same weight reads it by rows
  for (const auto* one : all)
    for (const Tensor& parameter : one->parameters(/*recurse=*/false)) ++owners[parameter.unsafeGetTensorImpl()];
  const torch::NoGradGuard no_grad;
  for (auto* one : all) {
    const Tensor weight = linear_weight(*one);
    if (!gains(weight) || owners[weight.unsafeGetTensorImpl()] != 1) continue;
    weights_.push_back(weight);
    weight.set_data(weight.detach().t().contiguous().t());
  }
}

InferenceWeights::~InferenceWeights() {
  try {
    const torch::NoGradGuard no_grad;
    for (const Tensor& weight : weights_)
      if (weight.dim() == 2 && is_turned(weight)) weight.set_data(weight.detach().contiguous());
  } catch (const std::exception&) {
    // Without memory for the copy, the weights stay as they are, with the same values.
  }
}

}  // namespace fulgur::nn
