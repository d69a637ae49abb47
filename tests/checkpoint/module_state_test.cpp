#include "fulgur/checkpoint/module_state.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d bn{nullptr};
  explicit Net(int64_t width = 3) {
    fc = register_module("fc", torch::nn::Linear(2, width));
    bn = register_module("bn", torch::nn::BatchNorm1d(width));
  }
};

NamedTensors copy_of(const NamedTensors& live) {
  NamedTensors copy;
  for (const auto& [name, tensor] : live) copy.emplace_back(name, tensor.detach().clone());
  return copy;
}

}  // namespace

TEST_CASE("parameters and buffers go from one module to another") {
  Net a, b;
  a.bn->forward(a.fc->forward(at::randn({5, 2})));  // moves the running statistics
  load_module_state(b, copy_of(module_state(a)));
  for (const auto& item : a.named_parameters()) CHECK(item.value().equal(b.named_parameters()[item.key()]));
  for (const auto& item : a.named_buffers()) CHECK(item.value().equal(b.named_buffers()[item.key()]));
  CHECK(b.bn->num_batches_tracked.item<int64_t>() == 1);
}

TEST_CASE("F13 every mismatch is listed and nothing is half-loaded") {
  Net net;
  const NamedTensors before = copy_of(module_state(net));
  NamedTensors wrong = copy_of(before);
  for (auto& [name, tensor] : wrong) {
    tensor = tensor.is_floating_point() ? tensor + 1 : tensor;
    if (name == "fc.weight") tensor = tensor.t().contiguous();       // same number of elements
    if (name == "bn.running_mean") tensor = tensor.to(at::kDouble);  // M2: LibTorch would reinterpret the bytes
    if (name == "bn.bias") name = "bn.bais";
  }
  CHECK_THROWS_WITH(load_module_state(net, wrong),
                    ContainsSubstring("fc.weight: checkpoint Float [2, 3], module Float [3, 2]") && ContainsSubstring("bn.running_mean: checkpoint Double") &&
                        ContainsSubstring("missing: bn.bias") && ContainsSubstring("unexpected: bn.bais"));
  for (const auto& [name, tensor] : before)
    for (const auto& [other, live] : module_state(net))
      if (name == other) CHECK(tensor.equal(live));
}

TEST_CASE("a tied parameter is stored once, with its alias") {
  struct Tied : torch::nn::Module {
    torch::nn::Linear a{nullptr}, b{nullptr};
    Tied() {
      a = register_module("a", torch::nn::Linear(2, 2));
      b = register_module("b", torch::nn::Linear(2, 2));
      b->weight = a->weight;
      tie_parameters(*this, "a.weight", "b.weight");
    }
  } net;
  CHECK(module_state(net).size() == 3);
  CHECK(parameter_aliases(net) == std::map<std::string, std::string>{{"b.weight", "a.weight"}});
}
