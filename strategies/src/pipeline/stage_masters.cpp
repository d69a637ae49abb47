// What optimizers of stages step in place of parameters in half precision: float32 copies of this rank's parts.
#include <ATen/core/grad_mode.h>

#include <utility>

#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "pipeline/stage_optimizers.h"

namespace fulgur::detail {
namespace {

// The entry of a parameter that stands for its copy.
constexpr const char* kMasterCopy = "copy";

// Calls `use` with each parameter of the module that the optimizer steps, what it steps, and the name.
template <class Use>
void for_each_stepped(const Optimizer& optimizer, const Use& use) {
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) use(group.module_params[i], group.params[i], group.names[i]);
}

}  // namespace

Tensor StageOptimizers::own_copy(const Tensor& parameter, const Tensor& whole) const {
  const Tensor own = divides(parameter) ? parts_->part_of(parameter, whole) : whole;
  if (!shards_) return own;
  return shards_->units().own_elements("", parameter, "the float32 copy", own);
}

Tensor StageOptimizers::of_module(const Tensor& parameter) const {
  return shards_ ? shards_->own_elements(parameter) : parameter.detach();
}

at::IntArrayRef StageOptimizers::whole_sizes(const Tensor& parameter) const {
  return divides(parameter) ? parts_->whole_sizes(parameter) : parameter.sizes();
}

void StageOptimizers::write_back(Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  for_each_stepped(optimizer, [&](const Tensor& parameter, const Tensor& stepped, const std::string&) {
    if (has_copy(parameter) && owns(parameter)) of_module(parameter).copy_(stepped.detach());
  });
}

int64_t StageOptimizers::bytes() const {
  int64_t bytes = 0;
  for (const Optimizer* optimizer : optimizers_)
    for_each_stepped(*optimizer, [&](const Tensor& parameter, const Tensor& stepped, const std::string&) {
      if (has_copy(parameter) && owns(parameter)) bytes += static_cast<int64_t>(stepped.nbytes());
    });
  return bytes;
}

StateTree StageOptimizers::state() const {
  StateTree whole;
  for (const Optimizer* optimizer : optimizers_) {
    StateTree::Map entries;
    for_each_stepped(*optimizer, [&](const Tensor& parameter, const Tensor& stepped, const std::string& name) {
      entries[name] =
          has_copy(parameter) ? StateTree::map({{kMasterCopy, stepped.detach()}}) : StateTree(StateTree::Map());
    });
    const StateTree all = joined(*optimizer, StateTree(std::move(entries)));
    if (all.is_null()) continue;
    for (const auto& [name, value] : all.as_map())
      if (value.contains(kMasterCopy)) whole[name] = value.at(kMasterCopy);
  }
  return whole;
}

StateTree StageOptimizers::state_in_parts(std::vector<TensorPart>& parts) const {
  StateTree copies;
  for (const Optimizer* optimizer : optimizers_)
    for_each_stepped(*optimizer, [&](const Tensor& parameter, const Tensor& stepped, const std::string& name) {
      if (has_copy(parameter)) copies[name] = parts.emplace_back(saved_.of_copy(parameter, stepped)).whole;
    });
  return copies;
}

void StageOptimizers::load_state(const StateTree& state) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Tensor, Tensor>> values;
  for (const Optimizer* optimizer : optimizers_)
    for_each_stepped(*optimizer, [&](const Tensor& parameter, const Tensor& stepped, const std::string& name) {
      if (!has_copy(parameter) || !owns(parameter) || !state.contains(name)) return;
      const Tensor& whole = state.at(name).tensor();
      if (whole.sizes() != whole_sizes(parameter))
        throw CheckpointError(cat("[strategies.mesh] the float32 copy of '", escape_controls(name),
                                  "' must have the same shape as the parameter; the checkpoint has ",
                                  shape_text(whole.sizes()), ", the parameter ", shape_text(whole_sizes(parameter)),
                                  ". Use the config with which the checkpoint was saved."));
      values.emplace_back(stepped.detach(), own_copy(parameter, whole));
    });
  for (auto& [stepped, own] : values) assign_values(stepped, own);
}

}  // namespace fulgur::detail
