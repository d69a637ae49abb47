#include "fulgur/nn/gradcheck.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/checkpoint.h"
#include "support/expect_error.h"
#include "support/texts_of_one.h"

namespace gradcheck_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using Tensors = torch::autograd::variable_list;

namespace {

enum class Fault { none, value, sign_of_one, second, random, constant };

/// x³ with a backward that may be wrong.
struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, int64_t fault) {
    context->save_for_backward({x});
    context->saved_data["fault"] = fault;
    return x.pow(3);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const Tensor x = context->get_saved_variables()[0];
    Tensor slope = 3 * x * x;
    switch (static_cast<Fault>(context->saved_data["fault"].toInt())) {
      case Fault::none:
        break;
      case Fault::value:
        slope = 2 * x * x;
        break;
      case Fault::sign_of_one:
        slope = slope.clone();
        slope.select(0, 1).select(0, 2).neg_();
        break;
      case Fault::second:
        slope = slope.detach();
        break;
      case Fault::random:
        slope = slope + 1e-9 * at::rand_like(x);
        break;
      case Fault::constant:
        return {slope + 0 * gradients[0], Tensor()};
    }
    return {slope * gradients[0], Tensor()};
  }
};

auto cube(Fault fault) {
  return [fault](const Tensor& x) { return Cube::apply(x, static_cast<int64_t>(fault)); };
}

Tensor input(at::IntArrayRef shape = {2, 3}) {
  at::manual_seed(4);
  return at::randn(shape, at::kDouble).add_(2).requires_grad_();
}

}  // namespace

TEST_CASE("gradcheck passes a right backward and leaves its inputs alone") {
  const Tensor x = input(), before = x.detach().clone();
  nn::gradcheck(cube(Fault::none), {x});
  nn::gradgradcheck(cube(Fault::none), {x});
  CHECK(at::equal(x, before));
  CHECK_FALSE(x.grad().defined());
  // Several inputs, one without gradient, several outputs, one without a graph; a transposed input.
  const auto several = [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return std::vector<Tensor>{a * b.sin(), (a * c).sum(), c.detach() + 1};
  };
  nn::gradcheck(several, {x, input({3, 2}).detach().t().requires_grad_(), at::ones({2, 3}, at::kDouble)});
  nn::gradgradcheck(several, {x, input(), at::ones({2, 3}, at::kDouble)});
  nn::gradcheck([](const Tensor& a) { return nn::checkpoint([](const Tensor& b) { return b.sin().exp(); }, a); }, {x});
}

TEST_CASE("gradcheck finds a wrong backward, and says where") {
  const Tensor x = input();
  CHECK_THAT(message_of<Error>([&] { nn::gradcheck(cube(Fault::value), {x}); }),
             ContainsSubstring("[nn.gradcheck] the backward must match finite differences (atol 1e-05, rtol 0.001); "
                               "for output 0 and input 0") &&
                 ContainsSubstring("analytical") && ContainsSubstring("numerical"));
  const double slope = 3 * x[1][2].item<double>() * x[1][2].item<double>();
  const std::string one = message_of<Error>([&] { nn::gradcheck(cube(Fault::sign_of_one), {x}); });
  CHECK_THAT(one, ContainsSubstring("at value [1, 2] of the output and [1, 2] of the input: analytical -" +
                                    std::to_string(slope).substr(0, 6)));
  CHECK_THAT(message_of<Error>([&] { nn::gradcheck(cube(Fault::random), {x}); }),
             ContainsSubstring("two backward passes must agree"));
  nn::gradcheck(cube(Fault::random), {x}, {.nondet_tol = 1e-6});
  CHECK_THAT(message_of<Error>([&] { nn::gradcheck(cube(Fault::constant), {input({1})}); }),
             ContainsSubstring("multiplied by the gradient"));
  // The second of two inputs and outputs.
  const auto second = [](const Tensor& a, const Tensor& b) {
    return std::vector<Tensor>{a * 2, a * Cube::apply(b, static_cast<int64_t>(Fault::value))};
  };
  CHECK_THAT(message_of<Error>([&] {
               nn::gradcheck(second, {x, input()});
             }),
             ContainsSubstring("output 1 and input 1"));
}

TEST_CASE("gradgradcheck finds a wrong second derivative after a right first") {
  const Tensor x = input();
  CHECK_NOTHROW(nn::gradcheck(cube(Fault::second), {x}));
  CHECK_THAT(message_of<Error>([&] { nn::gradgradcheck(cube(Fault::second), {x}); }),
             ContainsSubstring("for output 0 and input 0"));
}

TEST_CASE("tolerances of gradcheck decide") {
  const auto off = [](const Tensor& x) { return x * (1 + 1e-4) + (x - x.detach()) * 0; };
  CHECK_NOTHROW(nn::gradcheck(off, {input()}));
  const auto wrong_by = [](double share) {
    return [share](const Tensor& x) { return x.detach() + share * (x - x.detach()); };
  };
  // d/dx of the differences sees x.detach() + share * 0, the backward share: numerical 1, analytical share.
  CHECK_NOTHROW(nn::gradcheck(wrong_by(1 + 9e-4), {input()}));
  CHECK_THROWS_AS(nn::gradcheck(wrong_by(1 + 2e-3), {input()}), Error);
  CHECK_NOTHROW(nn::gradcheck(wrong_by(1 + 2e-3), {input()}, {.rtol = 3e-3}));
  CHECK_NOTHROW(nn::gradcheck(wrong_by(1 + 2e-3), {input()}, {.atol = 3e-3, .rtol = 0}));
  // A wide step sees the curvature: (x + h)³ - (x - h)³ = 2h (3x² + h²).
  CHECK_THROWS_AS(nn::gradcheck(cube(Fault::none), {input()}, {.eps = 0.5}), Error);
}

TEST_CASE("gradcheck names inputs that it cannot check") {
  CHECK_THAT(message_of<ConfigError>([] { nn::gradcheck(cube(Fault::none), {at::randn({2}).requires_grad_()}); }),
             ContainsSubstring("input 0 is Float"));
  CHECK_THAT(message_of<ConfigError>([] { nn::gradcheck(cube(Fault::none), {at::ones({2}, at::kDouble)}); }),
             ContainsSubstring("none does"));
  CHECK_THAT(message_of<Error>([] { nn::gradcheck([](const Tensor& x) { return x.detach(); }, {input()}); }),
             ContainsSubstring("none does"));
}

TEST_CASE("the backward of a batch norm over ranks passes gradcheck") {
  // The other rank has the same batch. Moving both, this rank's output changes as the outputs of both by this rank's
  // batch.
  struct Mirror final : test::TextsOfOne {
    int64_t rank() const override { return 0; }
    int64_t world_size() const override { return 2; }
    Tensor all_reduce(const Tensor& value, ReduceOp) override { return value * 2; }
    std::vector<Tensor> all_gather(const Tensor& value, bool) override { return {value, value}; }
    Tensor broadcast(const Tensor& value, int64_t) override { return value; }
    bool any(bool value) override { return value; }
    void barrier(std::string_view) override {}
  } mirror;
  nn::BatchNorm1d norm(nn::BatchNormOptions(3).track_running_stats(false));
  norm->sync_over(&mirror);
  const auto normalise = [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    norm->weight = weight;
    norm->bias = bias;
    return norm(x);
  };
  CHECK_NOTHROW(nn::gradcheck(normalise, {input({4, 3}), input({3}), input({3})}));
}

}  // namespace gradcheck_test
