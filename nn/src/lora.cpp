#include "fulgur/nn/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/linear.h"

namespace fulgur::nn {
namespace {

constexpr const char* kLoraA = "lora_A";
constexpr const char* kLoraB = "lora_B";

// The adapter's parameter of this name; undefined without an adapter.
Tensor lora_parameter(const torch::nn::Module& layer, const char* name) {
  const auto own = layer.named_parameters(/*recurse=*/false);
  const Tensor* const found = own.find(name);
  return found ? *found : Tensor();
}

ConfigError wrong_lora(const std::string& what) { return ConfigError(cat("[nn.add_lora] ", what)); }

void check_lora(const LoraOptions& options) {
  if (options.rank < 1) throw wrong_lora(cat("rank must be at least 1; got ", options.rank, "."));
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw wrong_lora(cat("dropout must be at least 0 and below 1; got ", options.dropout, "."));
}

}  // namespace

bool takes_lora(const torch::nn::Module& layer) {
  return dynamic_cast<const LinearImpl*>(&layer) || dynamic_cast<const torch::nn::LinearImpl*>(&layer);
}

bool has_lora(const torch::nn::Module& layer) { return takes_lora(layer) && lora_parameter(layer, kLoraA).defined(); }

void add_lora(torch::nn::Module& layer, const LoraOptions& options, const std::optional<at::Generator>& generator) {
  check_lora(options);
  auto* const ours = dynamic_cast<LinearImpl*>(&layer);
  const auto* const theirs = dynamic_cast<torch::nn::LinearImpl*>(&layer);
  if (!ours && !theirs) throw wrong_lora(cat("only linear layers have adapters; got a ", layer.name(), "."));
  if (theirs && options.dropout > 0)
    throw wrong_lora(
        "a torch::nn::Linear computes its adapter without dropout. Use fulgur::nn::Linear, which takes the same "
        "options "
        "and weights, or set dropout to 0.");
  if (const Tensor a = lora_parameter(layer, kLoraA); a.defined()) {
    if (a.size(0) != options.rank || (ours && ours->lora.alpha != options.alpha))
      throw wrong_lora(cat("the layer has an adapter of rank ", a.size(0),
                           ours ? cat(" and alpha ", ours->lora.alpha) : std::string(), " already; got rank ",
                           options.rank, " and alpha ", options.alpha, "."));
    if (ours) ours->lora = options;
    return;
  }
  const Tensor& weight = ours ? ours->weight : theirs->weight;
  const at::NoGradGuard no_grad;
  Tensor a = at::empty({options.rank, weight.size(1)}, at::kFloat);
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(weight.size(1), 1)));
  a.uniform_(-bound, bound, generator);
  // A weight that gets its values later is on `meta`.
  const auto like =
      weight.options().requires_grad(false).device(weight.is_meta() ? at::Device(at::kCPU) : weight.device());
  a = a.to(like);
  const Tensor b = at::zeros({weight.size(0), options.rank}, like);
  if (ours) return ours->add_lora(options, a, b);
  layer.register_parameter(kLoraA, a);
  layer.register_parameter(kLoraB, b);
}

Tensor lora_weight(const Tensor& weight, const Tensor& a, const Tensor& b, double scale) {
  return at::add(weight, at::mm(b, a), scale);
}

LoraWeights::LoraWeights(const std::vector<Layer>& layers) {
  replaced_.reserve(layers.size());
  for (const auto& [layer, scale] : layers) {
    const Tensor a = lora_parameter(*layer, kLoraA), b = lora_parameter(*layer, kLoraB);
    Tensor with_adapter = lora_weight(layer->weight, a, b, scale);
    replaced_.push_back({layer, layer->weight});
    layer->weight = std::move(with_adapter);
  }
}

LoraWeights::~LoraWeights() {
  for (auto& [layer, weight] : replaced_) layer->weight = std::move(weight);
}

}  // namespace fulgur::nn
