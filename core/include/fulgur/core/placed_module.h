#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// A submodule that a strategy may put on a device of its own, or on several with a copy of it on each. `nn::Placed<M>`
/// is what a user's module holds of it. Used by the thread of the run; its copies also by those that they compute on.
class FULGUR_API PlacedModule {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  /// `factory` makes another module of the same kind.
  PlacedModule(std::string name, std::shared_ptr<torch::nn::Module> module, Factory factory);
  ~PlacedModule();
  PlacedModule(const PlacedModule&) = delete;
  PlacedModule& operator=(const PlacedModule&) = delete;

  const std::string& name() const { return name_; }
  /// The one that is registered with the user's module: its tensors are those of optimizers and checkpoints.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// Where it computes, and moves its inputs to; empty: inputs are left where they are.
  const std::vector<at::Device>& devices() const { return devices_; }
  /// The module and its copies, one on each of `devices()`.
  const std::vector<std::shared_ptr<torch::nn::Module>>& replicas() const { return replicas_; }

  /// Moves the module to the first of `devices`, and makes a copy for each of the rest, whose tensors are those of a
  /// new module: `nn::ReplicaTensors` brings them the values. Empty: it is where it is, and the copies are gone.
  void place(std::vector<at::Device> devices);
  /// True: inputs are never moved, and one on another device than the module is an error.
  void check_inputs(bool on) { checks_inputs_ = on; }
  bool checks_inputs() const { return checks_inputs_; }

 private:
  std::string name_;
  std::shared_ptr<torch::nn::Module> module_;
  Factory factory_;
  std::vector<at::Device> devices_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  bool checks_inputs_ = false;
};

}  // namespace fulgur
