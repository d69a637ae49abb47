// Weights that are transposed in memory while nothing needs gradients: which, what stays, and what a copy restores.
#include "fulgur/nn/inference_weights.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/device/cpu_matmul_rule.h"
#include "fulgur/nn/linear.h"

namespace fulgur::nn {
namespace {

struct LayersOfSizes : torch::nn::Module {
  Linear ours = register_module("ours", Linear(256, 128));
  torch::nn::Linear theirs = register_module("theirs", torch::nn::Linear(128, 130));
  Linear small = register_module("small", Linear(100, 100)), large = register_module("large", Linear(4096, 512)),
         wide = register_module("wide", Linear(64, 513));
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(200, 256));
  Linear tied = register_module("tied", Linear(LinearOptions(256, 200).bias(false)));
  LayersOfSizes() { tied->weight = tied->register_parameter("weight_of_table", table->weight); }
  Tensor forward(const Tensor& x) { return theirs(ours(x).relu()); }
};

void need_avx512() {
  if (!fulgur::detail::this_cpu().avx512) SKIP("this processor keeps its weights");
}

}  // namespace

TEST_CASE("InferenceWeights: weights of linear layers are transposed in memory and restored, with their values") {
  need_avx512();
  at::manual_seed(3);
  LayersOfSizes net;
  const Tensor weight = net.ours->weight.detach().clone(), other = net.theirs->weight.detach().clone();
  const Tensor x = at::randn({16, 256}), before = net.forward(x);
  {
    const InferenceWeights turned(net);
    CHECK(turned.weights().size() == 2);
    for (const Tensor& one : {net.ours->weight, net.theirs->weight}) {
      CHECK(one.strides() == at::IntArrayRef({1, one.size(0)}));
      CHECK(one.requires_grad());
    }
    CHECK(net.ours->weight.equal(weight));
    CHECK(net.named_parameters()["ours.weight"].is_same(net.ours->weight));
    CHECK(net.named_parameters()["ours.weight"].equal(weight));
    for (const int64_t rows : {1, 3, 16, 200}) {
      CAPTURE(rows);
      const Tensor y = at::randn({rows, 256});
      CHECK(net.ours(y).allclose(at::linear(y, weight, net.ours->bias), 1e-5, 1e-5));
    }
    CHECK(net.forward(x).allclose(before, 1e-5, 1e-5));
  }
  CHECK(net.ours->weight.is_contiguous());
  CHECK(net.theirs->weight.is_contiguous());
  CHECK(net.ours->weight.equal(weight));
  CHECK(net.theirs->weight.equal(other));
  CHECK(net.forward(x).equal(before));
}

TEST_CASE("InferenceWeights: small, large, shared and double weights keep their order in memory") {
  need_avx512();
  LayersOfSizes net;
  net.theirs->to(at::kDouble);
  const InferenceWeights turned(net);
  REQUIRE(turned.weights().size() == 1);
  CHECK(turned.weights().front().is_same(net.ours->weight));
  for (const Tensor& one :
       {net.small->weight, net.large->weight, net.wide->weight, net.table->weight, net.theirs->weight})
    CHECK(one.is_contiguous());
}

TEST_CASE("InferenceWeights: what is written meanwhile is kept, and training works before and after") {
  need_avx512();
  Linear layer(200, 100);  // a module that no shared pointer holds is looked at too
  const Tensor x = at::randn({20, 200});
  layer(x).square().mean().backward();
  const Tensor gradient = layer->weight.grad().clone(), values = at::randn({100, 200});
  {
    const InferenceWeights turned(*layer);
    REQUIRE(turned.weights().size() == 1);
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(values);
    CHECK(layer(x).allclose(at::linear(x, values, layer->bias), 1e-4, 1e-4));
  }
  CHECK(layer->weight.is_contiguous());
  CHECK(layer->weight.equal(values));
  CHECK(layer->weight.grad().equal(gradient));
  layer->zero_grad();
  layer(x).sum().backward();
  CHECK(layer->weight.grad().allclose(x.sum(0).expand({100, 200}), 1e-4, 1e-4));
}

TEST_CASE("InferenceWeights: a weight that was replaced meanwhile stays as it is") {
  need_avx512();
  Linear layer(200, 100);
  const Tensor values = at::randn({100, 200});
  {
    const InferenceWeights turned(*layer);
    layer->weight.set_data(values);
  }
  CHECK(layer->weight.data_ptr() == values.data_ptr());
}

}  // namespace fulgur::nn
