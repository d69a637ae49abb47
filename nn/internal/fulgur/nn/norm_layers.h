#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::nn {

struct NormLayer {
  std::string name;  ///< dotted name in the module; empty for the module itself
  torch::nn::Module* module;
  bool takes_half_input = true;  ///< also on CUDA, with float32 weights
};

/// The normalisation layers of a module, itself included: batch, instance, layer and group norm of LibTorch and of
/// `nn/`, and the RMS norm of `nn/`.
FULGUR_API std::vector<NormLayer> norm_layers(torch::nn::Module& module);

}  // namespace fulgur::nn
