#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace torch::nn {
class LinearImpl;
}

namespace fulgur::nn {

/// A low-rank adapter of a linear layer (LoRA, Hu et al. 2021).
struct FULGUR_API LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< share of the adapter's inputs that is set to zero in training
  /// The factor of the adapter's output.
  double scale() const { return alpha / static_cast<double>(rank); }
};

/// Whether `add_lora` can adapt the layer: a `fulgur::nn::Linear` or a `torch::nn::Linear`.
FULGUR_API bool takes_lora(const torch::nn::Module& layer);

/// Whether the layer has an adapter.
FULGUR_API bool has_lora(const torch::nn::Module& layer);

/// Registers parameters `lora_A` (rank, in_features) and `lora_B` (out_features, rank) in the layer, with the dtype and
/// device of its weight. A is drawn uniformly from ±1/√in_features, as PEFT does (He et al. 2015 with a = √5), from
/// `generator` of the CPU, or from the default one; B is zero, so the outputs stay the same to the bit. A layer that
/// has an adapter keeps its values; throws a ConfigError if it has another rank or alpha.
///
/// A `fulgur::nn::Linear` computes y = x Wᵀ + b + alpha / rank · dropout(x) Aᵀ Bᵀ from then on. The `forward` of a
/// `torch::nn::Linear` cannot be extended: it computes with its adapter only while a `LoraWeights` exists, and
/// without dropout (a ConfigError).
FULGUR_API void add_lora(torch::nn::Module& layer, const LoraOptions& options,
                         const std::optional<at::Generator>& generator = std::nullopt);

/// W + scale · B A, differentiable.
FULGUR_API Tensor lora_weight(const Tensor& weight, const Tensor& a, const Tensor& b, double scale);

/// While it exists, layers of LibTorch compute with W + scale · B A, through which gradients reach A and B. The
/// registered parameter is W all the time. Create it outside of autocast, in each forward that a backward follows:
/// the product is computed once, here. Used by one thread.
class FULGUR_API LoraWeights {
 public:
  struct Layer {
    std::shared_ptr<torch::nn::LinearImpl> layer;
    double scale = 1;
  };
  explicit LoraWeights(const std::vector<Layer>& layers);
  ~LoraWeights();
  LoraWeights(const LoraWeights&) = delete;
  LoraWeights& operator=(const LoraWeights&) = delete;

 private:
  struct Replaced {
    std::shared_ptr<torch::nn::LinearImpl> layer;
    Tensor weight;
  };
  std::vector<Replaced> replaced_;
};

}  // namespace fulgur::nn
