#include "services/loss_leaves.h"

#include <ATen/ops/full.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>

namespace fulgur::detail {
namespace {

struct NanGradients : torch::autograd::Node {
  struct Leaf {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };
  std::vector<Leaf> leaves;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    torch::autograd::variable_list all{std::move(gradients[0])};
    for (const Leaf& leaf : leaves)
      all.push_back(at::full({}, std::numeric_limits<double>::quiet_NaN(), leaf.options).expand(leaf.sizes));
    return all;
  }
};

}  // namespace

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

Tensor with_nan_gradients(const Tensor& loss, const std::vector<Tensor>& leaves) {
  const std::shared_ptr<NanGradients> node(new NanGradients, torch::autograd::deleteNode);
  node->add_next_edge(torch::autograd::impl::gradient_edge(loss));
  for (const Tensor& leaf : leaves) {
    if (!leaf.is_floating_point() || leaf.numel() == 0) continue;
    node->add_next_edge(torch::autograd::impl::gradient_edge(leaf));
    node->leaves.push_back({leaf.sizes().vec(), leaf.options()});
  }
  Tensor shown = loss.detach().clone();
  torch::autograd::create_gradient_edge(shown, node);
  return shown;
}

}  // namespace fulgur::detail
