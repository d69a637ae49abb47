#include "fulgur/core/contracts/optimizer_handle.h"

#include <unordered_set>

namespace fulgur {

OptimizerHandle::OptimizerHandle(std::shared_ptr<Optimizer> optimizer, Stepper stepper)
    : optimizer_(std::move(optimizer)), stepper_(std::move(stepper)) {}

void OptimizerHandle::step(const Closure& closure) {
  optimizer_->check_rates(steps_);
  stepper_(*this, closure);
  ++steps_;
}

std::vector<Tensor> OptimizerHandle::parameters() const {
  std::vector<Tensor> all;
  for (const ParamGroup& group : optimizer_->groups())
    all.insert(all.end(), group.of_module().begin(), group.of_module().end());
  return all;
}

ToggledOptimizer::ToggledOptimizer(OptimizerHandle& optimizer, const std::vector<OptimizerHandle*>& all) {
  std::unordered_set<const void*> own;
  for (const Tensor& parameter : optimizer.parameters()) own.insert(parameter.unsafeGetTensorImpl());
  for (const OptimizerHandle* other : all) {
    for (Tensor& parameter : other->parameters()) {
      if (own.contains(parameter.unsafeGetTensorImpl()) || !parameter.requires_grad()) continue;
      parameter.requires_grad_(false);
      frozen_.push_back(parameter);
    }
  }
}

ToggledOptimizer::~ToggledOptimizer() {
  for (Tensor& parameter : frozen_) parameter.requires_grad_(true);
}

}  // namespace fulgur
