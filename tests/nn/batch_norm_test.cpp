#include "fulgur/nn/batch_norm.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>

#include <sstream>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace batch_norm_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

bool same(const Tensor& a, const Tensor& b) { return a.defined() == b.defined() && (!a.defined() || at::equal(a, b)); }

/// Results, gradients and buffers of both layers over a few steps of training and one of evaluation.
template <class Ours, class Theirs>
void compare(const torch::nn::BatchNormOptions& options, const std::vector<int64_t>& shape) {
  Ours ours(options);
  Theirs theirs(options);
  {
    at::NoGradGuard no_grad;
    for (const auto& parameter : theirs->named_parameters()) {
      const Tensor start = at::randn(parameter.value().sizes());
      parameter.value().copy_(start);
      ours->named_parameters()[parameter.key()].copy_(start);
    }
  }
  for (int step = 0; step < 4; ++step) {
    if (step == 3) {
      ours->eval();
      theirs->eval();
    }
    const Tensor values = at::randn(shape) * 3 + 1;
    const Tensor a = values.clone().requires_grad_(), b = values.clone().requires_grad_();
    const Tensor y = ours->forward(a), z = theirs->forward(b);
    CHECK(same(y, z));
    const Tensor weights = at::randn(shape);
    (y * weights).sum().backward();
    (z * weights).sum().backward();
    CHECK(same(a.grad(), b.grad()));
    CHECK(same(ours->weight.defined() ? ours->weight.grad() : Tensor(),
               theirs->weight.defined() ? theirs->weight.grad() : Tensor()));
    CHECK(same(ours->bias.defined() ? ours->bias.grad() : Tensor(),
               theirs->bias.defined() ? theirs->bias.grad() : Tensor()));
    CHECK(same(ours->running_mean, theirs->running_mean));
    CHECK(same(ours->running_var, theirs->running_var));
    CHECK(same(ours->num_batches_tracked, theirs->num_batches_tracked));
  }
  CHECK(ours->named_parameters().keys() == theirs->named_parameters().keys());
  CHECK(ours->named_buffers().keys() == theirs->named_buffers().keys());
}

}  // namespace

TEST_CASE("batch norm equals LibTorch's bit for bit") {
  compare<nn::BatchNorm1d, torch::nn::BatchNorm1d>(6, {8, 6});
  compare<nn::BatchNorm1d, torch::nn::BatchNorm1d>(6, {8, 6, 5});
  compare<nn::BatchNorm2d, torch::nn::BatchNorm2d>(4, {8, 4, 5, 3});
  compare<nn::BatchNorm3d, torch::nn::BatchNorm3d>(3, {4, 3, 2, 5, 3});
}

TEST_CASE("batch norm equals LibTorch's with every option") {
  using Options = torch::nn::BatchNormOptions;
  for (const auto& options :
       {Options(4).eps(0.1).momentum(0.3), Options(4).momentum(std::nullopt), Options(4).affine(false),
        Options(4).track_running_stats(false), Options(4).affine(false).track_running_stats(false)})
    compare<nn::BatchNorm2d, torch::nn::BatchNorm2d>(options, {8, 4, 5, 3});
}

TEST_CASE("batch norm takes channels-last and double inputs as LibTorch's does") {
  nn::BatchNorm2d ours(4);
  torch::nn::BatchNorm2d theirs(4);
  const Tensor x = at::randn({8, 4, 5, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const Tensor y = ours->forward(x);
  CHECK(at::equal(y, theirs->forward(x)));
  CHECK(y.is_contiguous(at::MemoryFormat::ChannelsLast));
  ours->to(at::kDouble);
  theirs->to(at::kDouble);
  CHECK(at::equal(ours->forward(x.to(at::kDouble)), theirs->forward(x.to(at::kDouble))));
}

TEST_CASE("a batch norm is a submodule under its name and can be cloned") {
  struct Net : torch::nn::Module {
    nn::BatchNorm2d bn{nullptr};
    Net() { bn = register_module("bn", nn::BatchNorm2d(64)); }
  };
  Net net;
  CHECK(net.named_parameters().contains("bn.weight"));
  CHECK(net.named_buffers().contains("bn.running_var"));
  net.bn->forward(at::randn({2, 64, 3, 3}));
  const auto copy = std::dynamic_pointer_cast<nn::BatchNorm2dImpl>(net.bn->clone());
  REQUIRE(copy);
  CHECK(at::equal(copy->running_mean, net.bn->running_mean));
  copy->running_mean.zero_();
  CHECK_FALSE(at::equal(copy->running_mean, net.bn->running_mean));
}

TEST_CASE("reset_parameters brings back the start") {
  nn::BatchNorm1d bn(3);
  bn->forward(at::randn({4, 3}));
  {
    at::NoGradGuard no_grad;
    bn->weight.fill_(5);
  }
  bn->reset_parameters();
  CHECK(at::equal(bn->weight, at::ones({3})));
  CHECK(at::equal(bn->running_mean, at::zeros({3})));
  CHECK(bn->num_batches_tracked.item<int64_t>() == 0);
  CHECK(bn->weight.requires_grad());
}

TEST_CASE("batch norm says what is wrong with its input") {
  nn::BatchNorm2d bn(4);
  CHECK_THAT(message_of<Error>([&] {
               bn->forward(at::randn({2, 3, 5, 5}));
             }),
             ContainsSubstring("BatchNorm2d") && ContainsSubstring("4 channels") && ContainsSubstring("3, 5, 5]"));
  CHECK_THROWS_AS(bn->forward(at::randn({2, 4})), Error);
  CHECK_THAT(message_of<Error>([&] {
               bn->forward(at::randn({1, 4, 1, 1}));
             }),
             ContainsSubstring("more than one value"));
  bn->eval();
  CHECK(bn->forward(at::randn({1, 4, 1, 1})).size(0) == 1);
  CHECK_THROWS_AS(nn::BatchNorm1d(0), ConfigError);
  nn::BatchNorm1d flat(3);
  CHECK_THAT(message_of<Error>([&] {
               flat->forward(at::randn({2, 3, 4, 4}));
             }),
             ContainsSubstring("2 or 3 dimensions"));
}

TEST_CASE("a batch norm prints its options") {
  std::ostringstream out;
  out << nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).momentum(std::nullopt));
  CHECK(out.str() == "fulgur::nn::BatchNorm2d(4, eps=1e-05, momentum=None, affine=true, track_running_stats=true)");
}

}  // namespace batch_norm_test
