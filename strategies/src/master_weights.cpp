#include "fulgur/strategies/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur {

void MasterWeights::adopt(Optimizer& optimizer) {
  optimizer.step_copies([&](const std::string& name, const Tensor& parameter) {
    if (!at::isReducedFloatingType(parameter.scalar_type())) return parameter;
    // In the parameter's memory format, so that gradients have the copy's strides.
    Tensor copy = parameter.detach().to(at::kFloat).set_requires_grad(true);
    copies_.insert_or_assign(name, copy);
    return copy;
  });
}

void MasterWeights::take_gradients(Optimizer& optimizer) {
  if (!taken_.insert(&optimizer).second) return;
  at::NoGradGuard no_grad;
  for (ParamGroup& group : optimizer.groups()) {
    for (size_t i = 0; i < group.module_params.size(); ++i) {
      if (group.params[i].is_same(group.module_params[i])) continue;
      const Tensor& gradient = group.module_params[i].grad();
      group.params[i].mutable_grad() = gradient.defined() ? gradient.to(at::kFloat) : Tensor();
    }
  }
}

void MasterWeights::write_back(Optimizer& optimizer) const {
  at::NoGradGuard no_grad;
  for (ParamGroup& group : optimizer.groups()) {
    std::vector<Tensor> to, from;
    for (size_t i = 0; i < group.module_params.size(); ++i) {
      if (group.params[i].is_same(group.module_params[i])) continue;
      to.push_back(group.module_params[i]);
      from.push_back(group.params[i]);
    }
    if (!to.empty()) at::_foreach_copy_(to, from);
  }
}

int64_t MasterWeights::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, copy] : copies_) bytes += static_cast<int64_t>(copy.nbytes());
  return bytes;
}

StateTree MasterWeights::state() const {
  StateTree state;
  for (const auto& [name, copy] : copies_) state[name] = copy.detach();
  return state;
}

void MasterWeights::load_state(const StateTree& state) {
  at::NoGradGuard no_grad;
  for (const auto& [name, copy] : copies_)
    if (state.contains(name) && state.at(name).tensor().sizes() != copy.sizes())
      throw CheckpointError(cat("[strategies.master_weights] shape of '", name, "': checkpoint ", shape_text(state.at(name).tensor().sizes()), ", parameter ",
                                shape_text(copy.sizes()), "."));
  for (auto& [name, copy] : copies_)
    if (state.contains(name)) copy.copy_(state.at(name).tensor());
}

}  // namespace fulgur
