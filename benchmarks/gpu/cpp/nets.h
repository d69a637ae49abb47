// The networks of the GPU benchmarks; peers/nets.py has the same, parameter by parameter.
#pragma once

#include <memory>

#include "work.h"

namespace gpu_bench {

/// A network for classes.
struct Net : torch::nn::Module {
  /// Logits (N, classes).
  virtual at::Tensor forward(at::Tensor x) = 0;
};

/// `mlp`: `depth` layers of `width`, ReLU, and one to the classes. `airbench`: the convolutional net of airbench94.
/// `resnet`: ResNet-50's shape, its convolutions with a bias where `bias`.
std::shared_ptr<Net> make_net(const Case& work);

}  // namespace gpu_bench
