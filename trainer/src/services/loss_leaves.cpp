#include "services/loss_leaves.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>

namespace fulgur::detail {

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

}  // namespace fulgur::detail
