#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/norm_layers.h"
#include "fulgur/nn/rms_norm.h"

namespace norm_layers_test {

using namespace fulgur;

namespace {

struct Nested : torch::nn::Module {
  nn::BatchNorm1d own{register_module("own", nn::BatchNorm1d(4))};
  torch::nn::BatchNorm2d theirs{register_module("theirs", torch::nn::BatchNorm2d(4))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 4))};
  nn::LayerNorm wide{register_module("wide", nn::LayerNorm(std::vector<int64_t>{4}))};
  nn::RMSNorm rms{register_module("rms", nn::RMSNorm(4))};
  torch::nn::LayerNorm fixed{register_module("fixed", torch::nn::LayerNorm(std::vector<int64_t>{4}))};
};

// The same numbers as LibTorch's layer, and their gradients.
template <class Ours, class Theirs>
void check_equal(Ours ours, Theirs theirs, const Tensor& shape_of) {
  {
    const torch::NoGradGuard no_grad;
    theirs->weight.copy_(at::randn_like(theirs->weight));
    theirs->bias.copy_(at::randn_like(theirs->bias));
    ours->weight.copy_(theirs->weight);
    ours->bias.copy_(theirs->bias);
  }
  const Tensor a = shape_of.clone().set_requires_grad(true), b = shape_of.clone().set_requires_grad(true);
  const Tensor y = ours->forward(a), expected = theirs->forward(b);
  CHECK(y.equal(expected));
  y.square().sum().backward();
  expected.square().sum().backward();
  CHECK(a.grad().equal(b.grad()));
  CHECK(ours->weight.grad().equal(theirs->weight.grad()));
}

}  // namespace

TEST_CASE("norm_layers finds the norms of LibTorch and of nn, and which take a half input with wider weights") {
  Nested module;
  const auto found = nn::norm_layers(module);
  REQUIRE(found.size() == 5);
  std::map<std::string, bool> by_name;
  for (const auto& norm : found) by_name[norm.name] = norm.takes_half_input;
  CHECK(by_name ==
        std::map<std::string, bool>{{"own", true}, {"theirs", true}, {"wide", true}, {"rms", true}, {"fixed", false}});
}

TEST_CASE("LayerNorm and GroupNorm equal LibTorch's, and take a half input with float32 weights") {
  at::manual_seed(1);
  check_equal(nn::LayerNorm(std::vector<int64_t>{6}), torch::nn::LayerNorm(std::vector<int64_t>{6}), at::randn({3, 6}));
  check_equal(nn::GroupNorm(2, 6), torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 6)), at::randn({3, 6, 5}));
  const Tensor half = at::randn({3, 6}).to(at::kBFloat16);
  nn::LayerNorm layer(std::vector<int64_t>{6});
  const Tensor y = layer->forward(half);
  CHECK(y.scalar_type() == at::kBFloat16);
  CHECK(at::allclose(y.to(at::kFloat), layer->forward(half.to(at::kFloat)), 0.02, 0.02));
  CHECK(nn::GroupNorm(2, 6)->forward(half.unsqueeze(2)).scalar_type() == at::kBFloat16);
}

TEST_CASE("RMSNorm has the values and gradients of its formula, and takes a half input with float32 weights") {
  at::manual_seed(2);
  nn::RMSNorm layer(6, 0.1);
  CHECK(layer->weight.eq(1).all().item<bool>());
  const Tensor weight = at::randn({6}, at::kDouble).set_requires_grad(true);
  layer->to(at::kDouble);
  {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(weight);
  }
  const Tensor a = at::randn({3, 5, 6}, at::kDouble).set_requires_grad(true),
               b = a.detach().clone().set_requires_grad(true);
  const Tensor y = layer->forward(a), expected = b / (b.square().mean(-1, true) + 0.1).sqrt() * weight;
  CHECK(at::allclose(y, expected, 1e-12, 1e-12));
  y.square().sum().backward();
  expected.square().sum().backward();
  CHECK(at::allclose(a.grad(), b.grad(), 1e-10, 1e-12));
  CHECK(at::allclose(layer->weight.grad(), weight.grad(), 1e-10, 1e-12));

  nn::RMSNorm single(6);
  const Tensor half = at::randn({3, 6}).to(at::kBFloat16);
  const Tensor of_half = single->forward(half);
  CHECK(of_half.scalar_type() == at::kBFloat16);
  CHECK(of_half.equal(single->forward(half.to(at::kFloat)).to(at::kBFloat16)));
  const auto copy = std::dynamic_pointer_cast<nn::RMSNormImpl>(single->clone());
  REQUIRE(copy);
  CHECK_FALSE(copy->weight.is_same(single->weight));
}

TEST_CASE("LayerNorm without affine has no parameters, and clone creates an independent layer") {
  CHECK(nn::LayerNorm(torch::nn::LayerNormOptions({6}).elementwise_affine(false))->parameters().empty());
  nn::LayerNorm layer(std::vector<int64_t>{6});
  const auto copy = std::dynamic_pointer_cast<nn::LayerNormImpl>(layer->clone());
  REQUIRE(copy);
  CHECK_FALSE(copy->weight.is_same(layer->weight));
  CHECK(copy->weight.equal(layer->weight));
}

}  // namespace norm_layers_test
