#include "unregistered_leaves.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_set>

#include "fulgur/core/text.h"
#include "run.h"

namespace fulgur::detail {
namespace {

std::vector<Tensor> leaves_of(const Tensor& loss) {
  std::vector<Tensor> leaves;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  visit(loss.grad_fn().get());
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) leaves.push_back(leaf->variable);
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return leaves;
}

}  // namespace

void UnregisteredLeaves::check(const Tensor& loss) {
  // Over several devices the loss is computed with copies of the parameters.
  if (losses_ == 2 || run_.strategy->devices().size() > 1) return;
  ++losses_;
  std::unordered_set<const void*> known;
  for (const auto& [name, value] : unique_parameters(*run_.model)) known.insert(value.unsafeGetTensorImpl());
  for (const PlannedOptimizer& planned : run_.plan.optimizers)
    for (const ParamGroup& group : planned.optimizer->groups())
      for (const Tensor& value : group.of_module()) known.insert(value.unsafeGetTensorImpl());
  for (const auto& [name, value] : run_.batch_)
    if (const auto* tensor = std::get_if<Tensor>(&value)) known.insert(tensor->unsafeGetTensorImpl());
  std::vector<Tensor> unknown = leaves_of(loss);
  std::erase_if(unknown, [&](const Tensor& leaf) { return known.contains(leaf.unsafeGetTensorImpl()); });
  if (losses_ == 1) {
    of_first_ = std::move(unknown);
    return;
  }
  std::vector<std::string> texts;
  for (const Tensor& leaf : unknown)
    if (std::any_of(of_first_.begin(), of_first_.end(), [&](const Tensor& other) { return other.is_same(leaf); }))
      texts.push_back(shape_text(leaf.sizes()));
  of_first_.clear();
  if (texts.empty()) return;
  throw Error(
      cat("[trainer.training_step] the loss depends on tensors that require gradients and are no parameters of the "
          "module, so they learn nothing: of the shapes ",
          join(texts),
          ". Register what shall learn: register_module(\"name\", layer) or register_parameter(\"name\", tensor). "
          "What shall not: requires_grad_(false)."));
}

}  // namespace fulgur::detail
