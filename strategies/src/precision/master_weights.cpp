#include "fulgur/strategies/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

DividedMasterWeights::~DividedMasterWeights() = default;

void MasterWeights::adopt(Optimizer& optimizer) {
  lists_.erase(&optimizer);
  optimizer.step_copies([&](const std::string& name, const Tensor& parameter) {
    if (!at::isReducedFloatingType(parameter.scalar_type())) return parameter;
    // In the parameter's memory format, so that gradients have the copy's strides.
    Tensor copy = changed_values(parameter, [](const Tensor& value) {
                    return value.detach().to(at::kFloat);
                  }).set_requires_grad(true);
    copies_.insert_or_assign(name, copy);
    return copy;
  });
}

std::unordered_map<const void*, Tensor> MasterWeights::hand_over(Optimizer& optimizer) {
  std::unordered_map<const void*, Tensor> handed;
  for (ParamGroup& group : optimizer.groups()) {
    if (group.module_params.empty()) continue;
    for (size_t i = 0; i < group.params.size(); ++i) {
      if (group.params[i].is_same(group.module_params[i])) continue;
      handed.emplace(group.module_params[i].unsafeGetTensorImpl(), group.params[i]);
      copies_.erase(group.names[i]);
    }
    group.params = std::exchange(group.module_params, {});
  }
  lists_.erase(&optimizer);
  return handed;
}

const MasterWeights::Lists& MasterWeights::lists_of(const Optimizer& optimizer) {
  const auto [place, is_new] = lists_.try_emplace(&optimizer);
  Lists& lists = place->second;
  if (!is_new) return lists;
  for (const ParamGroup& group : optimizer.groups()) {
    for (size_t i = 0; i < group.module_params.size(); ++i) {
      if (group.params[i].is_same(group.module_params[i])) continue;
      lists.copies.push_back(group.params[i]);
      lists.of_module.push_back(group.module_params[i]);
    }
  }
  return lists;
}

void MasterWeights::take_gradients(Optimizer& optimizer) {
  if (!divided_.expired() || !taken_.insert(&optimizer).second) return;
  at::NoGradGuard no_grad;
  const Lists& lists = lists_of(optimizer);
  // Allocated in each step: if kept, this memory would not be available for activations.
  std::vector<Tensor> from, to;
  for (size_t i = 0; i < lists.copies.size(); ++i) {
    const Tensor& gradient = lists.of_module[i].grad();
    Tensor& wide = lists.copies[i].mutable_grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided) {
      wide = gradient.defined() ? gradient.to(at::kFloat) : Tensor();
      continue;
    }
    wide = at::empty_like(gradient, gradient.options().dtype(at::kFloat));
    from.push_back(gradient);
    to.push_back(wide);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

void MasterWeights::write_back(Optimizer& optimizer) {
  if (const auto divided = divided_.lock()) return divided->write_back(optimizer);
  at::NoGradGuard no_grad;
  const Lists& lists = lists_of(optimizer);
  if (!lists.copies.empty()) at::_foreach_copy_(lists.of_module, lists.copies);
}

int64_t MasterWeights::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, copy] : copies_) bytes += static_cast<int64_t>(copy.nbytes());
  if (const auto divided = divided_.lock()) bytes += divided->bytes();
  return bytes;
}

StateTree MasterWeights::state() const {
  if (const auto divided = divided_.lock()) return divided->state();
  StateTree state;
  for (const auto& [name, copy] : copies_) state[name] = copy.detach();
  return state;
}

StateTree MasterWeights::state_in_parts(std::vector<TensorPart>& parts) const {
  const auto divided = divided_.lock();
  return divided ? divided->state_in_parts(parts) : state();
}

void MasterWeights::load_state(const StateTree& state) {
  if (const auto divided = divided_.lock()) return divided->load_state(state);
  at::NoGradGuard no_grad;
  for (const auto& [name, copy] : copies_)
    if (state.contains(name) && state.at(name).tensor().sizes() != copy.sizes())
      throw CheckpointError(
          cat("[strategies.master_weights] '", name, "' must have the same shape as the parameter; the checkpoint has ",
              shape_text(state.at(name).tensor().sizes()), ", the parameter ", shape_text(copy.sizes()), "."));
  for (auto& [name, copy] : copies_)
    if (state.contains(name)) assign_values(copy, state.at(name).tensor());
}

}  // namespace fulgur
