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

/// A submodule that a strategy may place on its own device, or replicate on several. `nn::Placed<M>` is the handle in a
/// user's module. The run's thread uses it; the threads that compute on its copies use those.
class FULGUR_API PlacedModule {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  /// `factory` makes another module of the same kind.
  PlacedModule(std::string name, std::shared_ptr<torch::nn::Module> module, Factory factory);
  ~PlacedModule();
  PlacedModule(const PlacedModule&) = delete;
  PlacedModule& operator=(const PlacedModule&) = delete;

  const std::string& name() const { return name_; }
  /// The module that the user's module registers. Its tensors are those of optimizers and checkpoints.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// The devices on which it computes and to which it moves its inputs. If there are none, inputs are not moved.
  const std::vector<at::Device>& devices() const { return devices_; }
  /// The module and its copies, one on each of `devices()`.
  const std::vector<std::shared_ptr<torch::nn::Module>>& replicas() const { return replicas_; }

  /// Moves the module to the first of `devices`, and creates a copy for each of the others from a new module:
  /// `nn::ReplicaTensors` fills in the values. If `devices` is empty, the module stays where it is, and the copies are
  /// removed.
  void place(std::vector<at::Device> devices);
  /// What `place` does with each copy before it moves it, so that it has the tensors that the module got after its
  /// creation.
  void set_up_copies(std::function<void(torch::nn::Module&)> set_up) { set_up_copy_ = std::move(set_up); }
  /// If on, inputs are never moved, and an input on another device than the module is an error.
  void check_inputs(bool on) { checks_inputs_ = on; }
  bool checks_inputs() const { return checks_inputs_; }

 private:
  std::string name_;
  std::shared_ptr<torch::nn::Module> module_;
  Factory factory_;
  std::function<void(torch::nn::Module&)> set_up_copy_;
  std::vector<at::Device> devices_;
  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  bool checks_inputs_ = false;
};

}  // namespace fulgur
