#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// A TorchScript module whose tensors also belong to a module of LibTorch. Both have the same tensor objects, so
/// `Module::to`, the load of a checkpoint, averages of weights and optimizers change both.
class ScriptProgram {
 public:
  /// Reads the file and registers its parameters, buffers and layers in `root`. Throws a ConfigError.
  ScriptProgram(const std::filesystem::path& path, torch::nn::Module& root, const char* component);

  bool has(const std::string& method) const { return script_.find_method(method).has_value(); }
  /// Arguments without a default value, and all arguments, without `self`.
  size_t required_arguments(const std::string& method) const;
  size_t most_arguments(const std::string& method) const;
  /// Runs a method in the modes of the layers of `root`. Throws an Error that names the method and the shapes.
  c10::IValue call(const std::string& method, std::vector<c10::IValue> arguments);
  /// Copies tensors that the program has assigned to its parameters and buffers into the registered ones. Called when
  /// no graph needs the previous values: after each backward, and by `call` if there is no graph.
  void take_back_assigned();
  /// A TorchScript file of the program, in eval mode.
  std::string bytes();

 private:
  using Layer = std::shared_ptr<torch::nn::Module>;
  /// An attribute of an object of the program, and the tensor that belongs in it.
  struct Slot {
    torch::jit::ObjectPtr object;
    size_t index = 0;
    Tensor tensor;
    int64_t version = 0;  // of the tensor, when the program last had it
  };
  /// The mode of a layer, in both modules.
  struct Mode {
    const torch::nn::Module* layer = nullptr;
    torch::jit::ObjectPtr object;
    size_t index = 0;
  };
  void register_all(const torch::jit::ObjectPtr& object, torch::nn::Module& layer);
  void register_tensor(const torch::jit::ObjectPtr& object, size_t index, torch::nn::Module& layer);
  void set_modes() const;
  void follow_registered();
  void move_constants(const std::vector<c10::IValue>& arguments);

  std::string path_;
  const char* component_;
  torch::jit::Module script_;
  std::vector<Slot> slots_;      // of parameters and buffers
  std::vector<Slot> constants_;  // other attributes that are tensors
  std::vector<Mode> modes_;
  std::unordered_map<const void*, Layer> layers_;  // of objects that several attributes share
};

}  // namespace fulgur::detail
