#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace torch::nn {
class Module;
}

namespace fulgur::nn {

/// Keeps the copies of a module, each on its own device, equal to the module: it copies values to them, by name, and
/// their gradients back. The copies are modules created by the same factory, not by `clone()`. Used by one thread,
/// while no copy computes; refers to the modules' tensors and layers at construction time.
class FULGUR_API ReplicaTensors {
 public:
  /// Throws a ConfigError if a replica's layers, parameters or buffers differ from those of `source` by name, shape or
  /// dtype, or if its ties differ.
  ReplicaTensors(const torch::nn::Module& source, const std::vector<std::shared_ptr<torch::nn::Module>>& replicas);

  /// Copies to the replicas the values of parameters and buffers that have changed since the last call, on either side,
  /// and which parameters require gradients and which layers are in training mode. A tensor counts as changed if its
  /// version or its memory differs. Floating-point buffers also count as changed after training, since LibTorch's norms
  /// write running statistics without incrementing the version. `all` copies everything: after other writes that bypass
  /// the version (`parameter.data()`, a CUDA graph's). Returns the bytes sent to other devices. Waits for no device
  /// unless the copy is on the CPU.
  int64_t copy_values(bool all = false);
  /// Adds the replicas' gradients to the source's, in the order of the replicas, and sets theirs to undefined. Returns
  /// the bytes received from other devices. Waits for no device unless the source is on the CPU.
  int64_t reduce_gradients();
  /// Sets the replicas' gradients to undefined, after a backward that failed. Waits for no device.
  void drop_gradients() noexcept;

 private:
  // A tensor of the source, its version when it was last copied, and the replicas' tensors that follow it.
  struct Followed {
    Tensor source;
    std::vector<Tensor> copies;
    const void* data = nullptr;
    int64_t version = -1;  ///< version of the source when it was copied; -1 for never
    std::vector<int64_t> copy_versions;
  };
  struct FollowedLayer {
    const torch::nn::Module* source;
    std::vector<torch::nn::Module*> copies;
  };

  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<Followed> parameters_, buffers_;
  std::vector<FollowedLayer> layers_;  ///< from the outermost
  bool trained_ = true;                ///< whether any layer of the source has trained since the last copy
};

}  // namespace fulgur::nn
