#include "fulgur/checkpoint/module_state.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace module_state_test {

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
                    ContainsSubstring("fc.weight: checkpoint Float [2, 3], module Float [3, 2]") &&
                        ContainsSubstring("bn.running_mean: checkpoint Double") &&
                        ContainsSubstring("missing: bn.bias") && ContainsSubstring("unexpected: bn.bais"));
  for (const auto& [name, tensor] : before)
    for (const auto& [other, live] : module_state(net))
      if (name == other) CHECK(tensor.equal(live));
}

TEST_CASE("F13 layers whose names changed places are listed with both shapes") {
  struct Two : torch::nn::Module {
    Two() {
      register_module("a", torch::nn::Linear(2, 3));
      register_module("b", torch::nn::Linear(3, 2));
    }
  } net;
  NamedTensors swapped = copy_of(module_state(net));
  for (auto& [name, tensor] : swapped) name[0] = name[0] == 'a' ? 'b' : 'a';
  CHECK_THROWS_WITH(load_module_state(net, swapped),
                    ContainsSubstring("a.weight: checkpoint Float [2, 3], module Float [3, 2]") &&
                        ContainsSubstring("a.bias: checkpoint Float [2], module Float [3]") &&
                        ContainsSubstring("b.weight: checkpoint Float [3, 2], module Float [2, 3]") &&
                        ContainsSubstring("b.bias"));
}

TEST_CASE("F13 with strict off what fits is loaded and the rest is listed") {
  Net net;
  const NamedTensors before = copy_of(module_state(net));
  NamedTensors given;
  for (const auto& [name, tensor] : before) {
    if (name == "fc.bias") continue;
    Tensor other = tensor.is_floating_point() ? tensor + 1 : tensor;
    if (name == "fc.weight") other = other.t().contiguous();
    given.emplace_back(name == "bn.bias" ? "bn.bais" : name, other);
  }
  const LoadReport report = load_module_state(net, given, {.strict = false, .key_prefixes = {}});
  CHECK(report.loaded ==
        std::vector<std::string>{"bn.weight", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"});
  CHECK(report.missing == std::vector<std::string>{"fc.bias", "bn.bias"});
  CHECK(report.unexpected == std::vector<std::string>{"bn.bais"});
  CHECK(report.mismatched == std::vector<std::string>{"fc.weight"});
  CHECK_THAT(report.differences, ContainsSubstring("fc.weight: checkpoint Float [2, 3], module Float [3, 2]") &&
                                     ContainsSubstring("unexpected: bn.bais"));
  for (const auto& [name, tensor] : before)
    for (const auto& [other, live] : module_state(net))
      if (name == other) CHECK(live.equal(name == "bn.weight" || name.starts_with("bn.running") ? tensor + 1 : tensor));
}

TEST_CASE("prefixes of names are replaced, the longest that fits") {
  Net net;
  NamedTensors given;
  for (const auto& [name, tensor] : copy_of(module_state(net)))
    given.emplace_back((name.starts_with("fc.") ? "net.encoder." + name.substr(3) : "net." + name),
                       tensor.is_floating_point() ? tensor + 1 : tensor);
  const LoadReport report =
      load_module_state(net, given, {.strict = true, .key_prefixes = {{"net.", ""}, {"net.encoder.", "fc."}}});
  CHECK(report.loaded.size() == given.size());
  CHECK(report.differences.empty());
  CHECK(net.fc->weight.equal(given[0].second));
  CHECK_THROWS_WITH(load_module_state(net, given, {.strict = false, .key_prefixes = {{"nte.", ""}}}),
                    ContainsSubstring("begins with 'nte.'") && ContainsSubstring("'net.encoder.weight'"));
  CHECK_THROWS_WITH(load_module_state(net, given, {.strict = false, .key_prefixes = {{"net.encoder.", "net.bn."}}}),
                    ContainsSubstring("two tensors of the checkpoint would be 'net.bn.weight'"));
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

TEST_CASE("Python's names of a tied parameter: both with equal values, or the other one alone") {
  torch::nn::Module module;
  const Tensor weight = module.register_parameter("a", at::zeros({2}));
  module.register_parameter("b", weight);
  load_module_state(module, {{"a", at::full({2}, 1.0)}, {"b", at::full({2}, 1.0)}});
  CHECK(weight.equal(at::full({2}, 1.0)));
  const LoadReport report = load_module_state(module, {{"b", at::full({2}, 2.0)}});
  CHECK(report.loaded == std::vector<std::string>{"a"});
  CHECK(weight.equal(at::full({2}, 2.0)));
  CHECK_THROWS_WITH(load_module_state(module, {{"a", at::full({2}, 3.0)}, {"b", at::full({2}, 4.0)}}),
                    ContainsSubstring("'b' and 'a' are one parameter"));
  CHECK(weight.equal(at::full({2}, 2.0)));
}

}  // namespace module_state_test
