#include "fulgur/nn/linear.h"

#include <ATen/Context.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <sstream>
#include <vector>

#include "fulgur/core/device/autocast.h"

namespace fulgur::nn {
namespace {

// LibTorch's layer and ours, made from the same seed.
std::pair<torch::nn::Linear, Linear> pair_of(int64_t in, int64_t out, bool bias) {
  at::manual_seed(7);
  torch::nn::Linear theirs(LinearOptions(in, out).bias(bias));
  at::manual_seed(7);
  return {theirs, Linear(LinearOptions(in, out).bias(bias))};
}

}  // namespace

TEST_CASE("Linear: the weights, names and values of LibTorch's") {
  for (const bool bias : {true, false}) {
    CAPTURE(bias);
    auto [theirs, ours] = pair_of(5, 3, bias);
    const auto expected = theirs->named_parameters(), found = ours->named_parameters();
    REQUIRE(found.keys() == expected.keys());
    for (const auto& entry : expected) CHECK(found[entry.key()].equal(entry.value()));
    for (const auto& shape : std::vector<std::vector<int64_t>>{{4, 5}, {2, 4, 5}, {2, 3, 4, 5}, {5}}) {
      const Tensor x = at::randn(shape);
      const Tensor y = ours(x), z = theirs(x);
      REQUIRE(y.sizes() == z.sizes());
      CHECK(y.allclose(z, 1e-6, 1e-6));
    }
  }
}

TEST_CASE("Linear: under autocast the bias is added in the format of the product") {
  auto [theirs, ours] = pair_of(64, 32, true);
  const Tensor x = at::randn({4, 8, 64});
  const Tensor expected = at::linear(x.to(at::kBFloat16), ours->weight.to(at::kBFloat16), ours->bias.to(at::kBFloat16));
  const Autocast on(at::kCPU, at::kBFloat16);
  const Tensor y = ours(x);
  CHECK(y.scalar_type() == at::kBFloat16);
  CHECK(y.equal(expected));
  y.sum().backward();
  CHECK(ours->weight.grad().scalar_type() == at::kFloat);
  CHECK(ours->bias.grad().scalar_type() == at::kFloat);
}

TEST_CASE("Linear: its gradients are those of LibTorch's") {
  auto [theirs, ours] = pair_of(6, 4, true);
  const Tensor x = at::randn({3, 5, 6});
  theirs(x).square().sum().backward();
  ours(x).square().sum().backward();
  CHECK(ours->weight.grad().allclose(theirs->weight.grad(), 1e-5, 1e-5));
  CHECK(ours->bias.grad().allclose(theirs->bias.grad(), 1e-5, 1e-5));
}

TEST_CASE("Linear: a clone has its own weights, and its text shows its sizes") {
  const Linear layer(LinearOptions(3, 2).bias(false));
  const auto copy = std::dynamic_pointer_cast<LinearImpl>(layer->clone());
  REQUIRE(copy);
  CHECK(copy->weight.equal(layer->weight));
  CHECK(copy->weight.data_ptr() != layer->weight.data_ptr());
  CHECK_FALSE(copy->bias.defined());
  std::ostringstream text;
  text << layer;
  CHECK(text.str() == "fulgur::nn::Linear(in_features=3, out_features=2, bias=false)");
}

}  // namespace fulgur::nn
