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

/// Keeps copies of a module, each on a device of its own, equal to it: values by name, and gradients back. The copies are
/// modules made by the same factory, not by `clone()`. Used by one thread, while no copy computes.
class FULGUR_API ReplicaTensors {
 public:
  /// Throws a ConfigError where a replica has other parameters or buffers than `source`, by name, shape or dtype, or ties others.
  ReplicaTensors(const torch::nn::Module& source, std::vector<std::shared_ptr<torch::nn::Module>> replicas);

  /// Brings the replicas the values of parameters and buffers that have changed since the last call, and which parameters
  /// learn and which layers are in training mode. Returns the bytes that went to other devices. Waits for no device.
  int64_t copy_values();
  /// Behind an optimizer's step: parameters that learn count as changed. (The fused kernels count no version up.)
  void stepped();
  /// Adds the replicas' gradients to the source's, in the order of the replicas, and sets them to none. Returns the bytes that
  /// came from other devices.
  int64_t reduce_gradients();

 private:
  // A tensor of the source, as it was when it was copied, and those that follow it.
  struct Followed {
    std::string name;
    Tensor source;
    std::vector<Tensor> copies;
    const void* data = nullptr;
    int64_t version = -1;  ///< of the source, when it was copied; -1: never
    std::vector<int64_t> copy_versions;
  };

  const torch::nn::Module& source_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<Followed> parameters_, buffers_;
};

}  // namespace fulgur::nn
