#include "fulgur/nn/lora.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/nn/linear.h"
#include "support/expect_error.h"

namespace lora_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

constexpr nn::LoraOptions kOptions{.rank = 2, .alpha = 6, .dropout = 0};

// A layer of either class, with an adapter whose B is not zero.
template <class Layer>
Layer adapted_layer(const nn::LoraOptions& options = kOptions) {
  at::manual_seed(4);
  Layer layer(5, 3);
  nn::add_lora(*layer, options);
  const at::NoGradGuard no_grad;
  layer->named_parameters()["lora_B"].normal_();
  return layer;
}

Tensor by_hand(torch::nn::Module& layer, const Tensor& x) {
  const auto p = layer.named_parameters();
  return at::linear(x, p["weight"], p["bias"]) + at::linear(at::linear(x, p["lora_A"]), p["lora_B"]) * 3.0;
}

}  // namespace

TEST_CASE("Linear: an adapter changes nothing until B does, and then adds alpha / rank of B A x") {
  at::manual_seed(4);
  nn::Linear layer(5, 3);
  const Tensor x = at::randn({7, 5}), before = layer(x);
  nn::add_lora(*layer, kOptions);
  CHECK(layer(x).equal(before));
  CHECK(layer->lora_A.sizes() == at::IntArrayRef({2, 5}));
  CHECK(layer->lora_B.equal(at::zeros({3, 2})));
  // PEFT's initial values: uniform in ±1/√in.
  CHECK(layer->lora_A.abs().max().item<double>() <= 1 / std::sqrt(5.0));
  CHECK(layer->lora_A.abs().max().item<double>() > 0.2);
  auto with_b = adapted_layer<nn::Linear>();
  CHECK(with_b->forward(x).allclose(by_hand(*with_b, x), 1e-5, 1e-5));
  CHECK_FALSE(with_b->forward(x).allclose(before, 1e-2, 1e-2));
}

TEST_CASE("Linear: dropout is of the adapter's inputs, and only in training") {
  auto layer = adapted_layer<nn::Linear>({.rank = 2, .alpha = 6, .dropout = 0.5});
  const Tensor x = at::randn({512, 5});
  const Tensor plain = at::linear(x, layer->weight, layer->bias);
  const Tensor dropped = layer->forward(x) - plain;
  CHECK_FALSE(dropped.allclose(by_hand(*layer, x) - plain, 1e-3, 1e-3));
  // A sample whose inputs are all dropped has the output of the layer alone.
  CHECK(dropped.abs().sum(1).lt(1e-6).any().item<bool>());
  layer->eval();
  CHECK(layer->forward(x).allclose(by_hand(*layer, x), 1e-5, 1e-5));
}

TEST_CASE("LoraWeights: a layer of LibTorch's computes with its adapter and gives its gradients, and is restored") {
  auto theirs = adapted_layer<torch::nn::Linear>();
  auto ours = adapted_layer<nn::Linear>();
  const Tensor x = at::randn({7, 5});
  const Tensor base = theirs->weight;
  {
    const nn::LoraWeights adapted({{.layer = theirs.ptr(), .scale = 3}});
    const Tensor y = theirs(x);
    CHECK(y.allclose(ours(x), 1e-4, 1e-5));
    y.square().sum().backward();
    // What checkpoints and optimizers see.
    CHECK(theirs->named_parameters()["weight"].is_same(base));
  }
  CHECK(theirs->weight.is_same(base));
  CHECK(theirs(x).allclose(at::linear(x, base, theirs->bias), 1e-6, 1e-6));
  ours(x).square().sum().backward();
  for (const char* name : {"lora_A", "lora_B", "bias"})
    CHECK(theirs->named_parameters()[name].grad().allclose(ours->named_parameters()[name].grad(), 1e-4, 1e-4));
}

TEST_CASE("an adapter has its layer's dtype, and a clone has the same one") {
  nn::Linear layer(5, 3);
  layer->to(at::kDouble);
  nn::add_lora(*layer, kOptions);
  CHECK(layer->lora_A.scalar_type() == at::kDouble);
  auto original = adapted_layer<nn::Linear>();
  const auto copy = std::dynamic_pointer_cast<nn::LinearImpl>(original->clone());
  REQUIRE(copy);
  const Tensor x = at::randn({7, 5});
  CHECK(copy->forward(x).equal(original->forward(x)));
}

TEST_CASE("add_lora keeps an adapter, and refuses another one, other layers and LibTorch's with dropout") {
  auto layer = adapted_layer<nn::Linear>();
  const Tensor before = layer->lora_B.clone();
  nn::add_lora(*layer, kOptions);
  CHECK(layer->lora_B.equal(before));
  CHECK(nn::has_lora(*layer));
  CHECK_THAT(message_of<ConfigError>([&] { nn::add_lora(*layer, {.rank = 3, .alpha = 6, .dropout = 0}); }),
             ContainsSubstring("rank 2 and alpha 6.0 already; got rank 3"));
  torch::nn::Embedding embedding(4, 3);
  CHECK_FALSE(nn::takes_lora(*embedding));
  CHECK_THROWS_AS(nn::add_lora(*embedding, kOptions), ConfigError);
  torch::nn::Linear theirs(5, 3);
  CHECK(nn::takes_lora(*theirs));
  CHECK_FALSE(nn::has_lora(*theirs));
  CHECK_THAT(message_of<ConfigError>([&] { nn::add_lora(*theirs, {.rank = 2, .alpha = 6, .dropout = 0.1}); }),
             ContainsSubstring("Use fulgur::nn::Linear"));
}

}  // namespace lora_test
