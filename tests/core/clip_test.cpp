#include "fulgur/core/state/clip.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <torch/nn/utils/clip_grad.h>

#include <catch2/catch_test_macros.hpp>

namespace clip_test {

using namespace fulgur;

namespace {

std::vector<Tensor> parameters_with_gradients(double scale) {
  at::manual_seed(3);
  std::vector<Tensor> parameters;
  for (const int64_t size : {3, 50, 1}) {
    Tensor parameter = at::randn({size, 2}).requires_grad_();
    parameter.mutable_grad() = at::randn({size, 2}) * scale;
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace

TEST_CASE("clip_grad_norm equals LibTorch's to the last bit and stays a tensor") {
  for (const double scale : {0.001, 1.0, 100.0}) {
    const auto mine = parameters_with_gradients(scale);
    const auto theirs = parameters_with_gradients(scale);
    std::vector<Tensor> gradients;
    for (const Tensor& p : mine) gradients.push_back(p.grad());
    const Tensor norm = clip_grad_norm(gradients, 0.3);
    const double expected = torch::nn::utils::clip_grad_norm_(theirs, 0.3);
    CHECK(norm.item<double>() == expected);
    for (size_t i = 0; i < mine.size(); ++i) CHECK(mine[i].grad().equal(theirs[i].grad()));
  }
}

TEST_CASE("clip_grad_value clamps") {
  const auto parameters = parameters_with_gradients(10);
  std::vector<Tensor> gradients;
  for (const Tensor& p : parameters) gradients.push_back(p.grad());
  clip_grad_value(gradients, 0.25);
  for (const Tensor& g : gradients) CHECK(g.abs().max().item<double>() == 0.25);
}

TEST_CASE("norms of half-precision gradients are summed in float32") {
  // The sum of squares, and the norm itself, cannot be represented in float16.
  const std::vector<Tensor> gradients{at::full({100, 100}, 1000.0, at::kHalf), at::full({3}, 4.0, at::kBFloat16)};
  CHECK(grad_norm(gradients).scalar_type() == at::kFloat);
  CHECK(std::abs(grad_norm(gradients).item<double>() - 100000.0) < 1.0);
  CHECK(clip_grad_norm(gradients, 1.0).item<double>() == grad_norm({at::full({100, 100}, 1000.0)}).item<double>());
  CHECK(std::abs(grad_norm(gradients).item<double>() - 1.0) < 1e-2);
}

TEST_CASE("norms_of returns the norm of each tensor, in one dtype") {
  const std::vector<Tensor> tensors{at::full({4}, 2.0), at::full({2, 2}, -3.0, at::kBFloat16),
                                    at::full({1}, 5.0, at::kDouble)};
  const std::vector<Tensor> norms = norms_of(tensors, 2), largest = norms_of(tensors, 1.0 / 0.0);
  REQUIRE(norms.size() == 3);
  for (const Tensor& norm : norms) CHECK(norm.scalar_type() == at::kFloat);
  CHECK(norms[0].item<double>() == 4);
  CHECK(norms[1].item<double>() == 6);
  CHECK(norms[2].item<double>() == 5);
  CHECK(largest[1].item<double>() == 3);
  CHECK(norms_of({}, 2).empty());
}

TEST_CASE("clipping no gradients gives 0") { CHECK(clip_grad_norm({}, 1.0).item<double>() == 0.0); }

}  // namespace clip_test
