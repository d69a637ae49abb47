#include "fulgur/core/contracts/placed_module.h"

#include <torch/nn/module.h>

#include "fulgur/core/state/rng.h"

namespace fulgur {

PlacedModule::PlacedModule(std::string name, std::shared_ptr<torch::nn::Module> module, Factory factory)
    : name_(std::move(name)), module_(std::move(module)), factory_(std::move(factory)), replicas_{module_} {}

PlacedModule::~PlacedModule() = default;

void PlacedModule::place(std::vector<at::Device> devices) {
  replicas_ = {module_};
  devices_ = std::move(devices);
  if (devices_.empty()) return;
  // The copies' initial weights are overwritten: creating them must not advance the run's generator.
  const RngGuard rng({at::kCPU});
  for (size_t i = 1; i < devices_.size(); ++i) {
    replicas_.push_back(factory_());
    if (set_up_copy_) set_up_copy_(*replicas_.back());
  }
  for (size_t i = 0; i < devices_.size(); ++i) replicas_[i]->to(devices_[i]);
}

}  // namespace fulgur
