#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace torch::nn {
class Module;
}

namespace fulgur::nn {

/// Keeps copies of a module, each on a device of its own, equal to it: values by name, and gradients back. The copies
/// are modules made by the same factory, not by `clone()`. Used by one thread, while no copy computes; holds the
/// modules' tensors and layers as they are when it is made.
class FULGUR_API ReplicaTensors {
 public:
  /// Throws a ConfigError where a replica has other layers, parameters or buffers than `source`, by name, shape or
  /// dtype, or ties others.
  ReplicaTensors(const torch::nn::Module& source, const std::vector<std::shared_ptr<torch::nn::Module>>& replicas);

  /// Brings the replicas the values of parameters and buffers that have changed since the last call, on either side,
  /// and which parameters learn and which layers are in training mode. Changed is what has another version or other
  /// memory, and floating buffers behind training, since LibTorch's norms write running statistics without a version.
  /// `all` copies everything: behind other writes past the version (`parameter.data()`, a CUDA graph's). Returns the
  /// bytes that went to other devices. Waits for no device but where the copy is on the CPU.
  int64_t copy_values(bool all = false);
  /// Adds the replicas' gradients to the source's, in the order of the replicas, and sets them to none. Returns the
  /// bytes that came from other devices. Waits for no device but where the source is on the CPU.
  int64_t reduce_gradients();

 private:
  // A tensor of the source, as it was when it was copied, and those that follow it.
  struct Followed {
    Tensor source;
    std::vector<Tensor> copies;
    const void* data = nullptr;
    int64_t version = -1;  ///< of the source, when it was copied; -1: never
    std::vector<int64_t> copy_versions;
  };
  struct FollowedLayer {
    const torch::nn::Module* source;
    std::vector<torch::nn::Module*> copies;
  };

  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<Followed> parameters_, buffers_;
  std::vector<FollowedLayer> layers_;  ///< from the outermost
  bool trained_ = true;                ///< since the last copy, any layer of the source
};

}  // namespace fulgur::nn
