#include "loops/unregistered_leaves.h"

#include <algorithm>
#include <unordered_set>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "run/run_state.h"
#include "services/loss_leaves.h"

namespace fulgur::detail {
namespace {

// Optimizers only have the parameters that existed when they were created.
void refuse_late_parameters(const RunState& run, const std::unordered_set<const void*>& optimized) {
  std::vector<std::string> names;
  for (const auto& [name, value] : unique_parameters(*run.model)) {
    const void* const parameter = value.unsafeGetTensorImpl();
    if (value.requires_grad() && !run.parameters_at_start.contains(parameter) && !optimized.contains(parameter))
      names.push_back(name);
  }
  if (names.empty()) return;
  throw Error(cat(
      "[trainer.training_step] parameters were registered while training runs, so no optimizer has them: ", join(names),
      ". Register layers and parameters in the module's constructor or in configure_model()."));
}

// A module that uses the weight of a layer, and does not call the layer, ignores its adapter.
void warn_of_unused_adapters(const RunState& run, const std::vector<Tensor>& leaves) {
  std::unordered_set<const void*> used;
  for (const Tensor& leaf : leaves) used.insert(leaf.unsafeGetTensorImpl());
  std::vector<std::string> unused;
  const auto parameters = run.model->named_parameters();
  for (const std::string& layer : run.adapters->layers)
    if (const Tensor* const b = parameters.find(layer + ".lora_B"); b && !used.contains(b->unsafeGetTensorImpl()))
      unused.push_back(layer);
  if (unused.empty()) return;
  log::warn("trainer.unused_adapters",
            cat("the loss of the first batch does not depend on the adapters of ", join_some(unused, 5),
                ": they are not trained by it. Does the module call these layers?"));
}

}  // namespace

void UnregisteredLeaves::check(const Tensor& loss) {
  // With several devices, the loss is computed from copies of the parameters.
  if (losses_ == 2 || run_.strategy->devices().size() > 1) return;
  ++losses_;
  std::unordered_set<const void*> known;
  for (const PlannedOptimizer& planned : run_.plan.optimizers)
    for (const ParamGroup& group : planned.optimizer->groups())
      for (const Tensor& value : group.of_module()) known.insert(value.unsafeGetTensorImpl());
  refuse_late_parameters(run_, known);
  for (const auto& [name, value] : unique_parameters(*run_.model)) known.insert(value.unsafeGetTensorImpl());
  for (const auto& [name, value] : run_.position.batch)
    if (const auto* tensor = std::get_if<Tensor>(&value)) known.insert(tensor->unsafeGetTensorImpl());
  std::vector<Tensor> unknown = leaves_of(loss);
  if (losses_ == 1 && run_.adapters) warn_of_unused_adapters(run_, unknown);
  std::erase_if(unknown, [&](const Tensor& leaf) { return known.contains(leaf.unsafeGetTensorImpl()); });
  if (losses_ == 1) {
    of_first_ = std::move(unknown);
    return;
  }
  std::vector<std::string> texts;
  for (const Tensor& leaf : unknown)
    if (std::ranges::any_of(of_first_, [&](const Tensor& other) { return other.is_same(leaf); }))
      texts.push_back(shape_text(leaf.sizes()));
  of_first_.clear();
  if (texts.empty()) return;
  throw Error(
      cat("[trainer.training_step] the loss depends on tensors that require gradients but are not parameters of the "
          "module, so they are not trained; their shapes are ",
          join(texts),
          ". Register what should be trained: register_module(\"name\", layer) or register_parameter(\"name\", "
          "tensor). Call requires_grad_(false) on the rest."));
}

}  // namespace fulgur::detail
