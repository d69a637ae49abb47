#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/nn/batch_norm.h"
#include "support/expect_error.h"
#include "support/gpu.h"
#include "support/texts_of_one.h"
#include "support/thread_collectives.h"

namespace sync_batch_norm_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using Options = torch::nn::BatchNormOptions;
using Sizes = std::vector<int64_t>;

namespace {

struct Case {
  Options options;
  Sizes shape;  ///< without N
  Sizes split;  ///< samples of each rank
  at::ScalarType input = at::kDouble, layer = at::kDouble;
  double tolerance = 1e-12;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  double mean = 1, deviation = 3;
  bool evaluates = true;
};

struct Result {
  Tensor y, dx, dw, db, running_mean, running_var, batches;
};

Tensor gradient_of(const Tensor& parameter) { return parameter.defined() ? parameter.grad().clone() : Tensor(); }
Tensor copy_of(const Tensor& buffer) { return buffer.defined() ? buffer.clone() : Tensor(); }

/// A training step of which only the gradient of y is given.
template <class Layer>
Result step(Layer& layer, const Tensor& x, const Tensor& dy) {
  const Tensor input = x.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  for (const auto& parameter : layer->parameters()) parameter.mutable_grad() = Tensor();
  const Tensor y = layer->forward(input);
  y.backward(dy);
  return {y.detach(),
          input.grad(),
          gradient_of(layer->weight),
          gradient_of(layer->bias),
          copy_of(layer->running_mean),
          copy_of(layer->running_var),
          copy_of(layer->num_batches_tracked)};
}

template <class Layer>
Layer make_layer(const Case& c, const Tensor& weight, const Tensor& bias) {
  Layer layer(c.options);
  at::NoGradGuard no_grad;
  if (layer->weight.defined()) {
    layer->weight.copy_(weight);
    layer->bias.copy_(bias);
  }
  for (auto& parameter : layer->parameters()) parameter.set_data(parameter.to(c.layer));
  for (auto& buffer : layer->buffers())
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(c.layer));
  return layer;
}

void check_close(const char* what, const Tensor& found, const Tensor& expected, double tolerance) {
  CAPTURE(what, found, expected);
  REQUIRE(found.defined() == expected.defined());
  if (!found.defined()) return;
  CHECK(found.sizes() == expected.sizes());
  CHECK(at::allclose(found.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance));
}

template <class Member>
std::vector<Tensor> column(const std::vector<Result>& results, Member member) {
  std::vector<Tensor> tensors;
  for (const Result& result : results) tensors.push_back(result.*member);
  return tensors;
}

Tensor sum(const std::vector<Tensor>& tensors) {
  Tensor total = tensors[0];
  for (size_t i = 1; i < tensors.size() && total.defined(); ++i) total = total + tensors[i];
  return total;
}

/// Three steps in training over ranks against the same layer on the whole batch in double, then one in evaluation.
template <class Layer>
void compare(const Case& c) {
  CAPTURE(c.shape, c.split, c.format, c.input, c.layer);
  at::manual_seed(7);
  int64_t samples = 0;
  for (const int64_t n : c.split) samples += n;
  Sizes whole_shape = c.shape;
  whole_shape.insert(whole_shape.begin(), samples);
  const Tensor weight = at::randn({c.shape[0]}).to(c.layer), bias = at::randn({c.shape[0]}).to(c.layer);
  Case whole_case = c;
  whole_case.layer = at::kDouble;
  Layer whole = make_layer<Layer>(whole_case, weight, bias);
  std::vector<Layer> layers;
  for (size_t rank = 0; rank < c.split.size(); ++rank) layers.push_back(make_layer<Layer>(c, weight, bias));

  for (int number = 0; number < (c.evaluates ? 4 : 3); ++number) {
    CAPTURE(number);
    const bool training = number < 3;
    const Tensor x = (at::randn(whole_shape, at::kDouble) * c.deviation + c.mean).to(c.input).contiguous(c.format);
    const Tensor dy = at::randn(whole_shape, at::kDouble).to(c.input).contiguous(c.format);
    whole->train(training);
    const Result expected = step(whole, x.to(at::kDouble), dy.to(at::kDouble));

    std::vector<Result> results(c.split.size());
    const std::vector<Tensor> xs = x.split_with_sizes(c.split), dys = dy.split_with_sizes(c.split);
    test::run_ranks(static_cast<int64_t>(c.split.size()), [&](Collectives& ranks) {
      const auto rank = static_cast<size_t>(ranks.rank());
      layers[rank]->sync_over(&ranks);
      layers[rank]->train(training);
      results[rank] = step(layers[rank], xs[rank], dys[rank]);
    });

    for (const Result& result : results) {
      CHECK(result.y.scalar_type() == c.input);
      CHECK(result.dx.scalar_type() == c.input);
      CHECK((!result.dw.defined() || result.dw.scalar_type() == c.layer));
      if (result.y.numel() > 0 && c.format != at::MemoryFormat::Contiguous) {
        CHECK(result.y.is_contiguous(c.format));
        CHECK(result.dx.is_contiguous(c.format));
      }
      check_close("running mean", result.running_mean, expected.running_mean, c.tolerance);
      check_close("running variance", result.running_var, expected.running_var, c.tolerance);
      // The ranks' replicas stay replicas.
      if (result.running_mean.defined()) {
        CHECK(at::equal(result.running_mean, results[0].running_mean));
        CHECK(at::equal(result.running_var, results[0].running_var));
        CHECK(at::equal(result.batches, expected.batches));
      }
    }
    check_close("y", at::cat(column(results, &Result::y)), expected.y, c.tolerance);
    check_close("input gradient", at::cat(column(results, &Result::dx)), expected.dx, c.tolerance);
    check_close("weight gradient", sum(column(results, &Result::dw)), expected.dw, 10 * c.tolerance);
    check_close("bias gradient", sum(column(results, &Result::db)), expected.db, 10 * c.tolerance);
  }
}

const std::vector<Sizes> kSplits = {{4, 4},    {5, 3},    {1, 7},    {3, 0},       {0, 3},
                                    {2, 5, 4}, {1, 1, 1}, {0, 6, 1}, {3, 2, 1, 4}, {0, 1, 0, 5}};

}  // namespace

TEST_CASE("batch norm over ranks equals batch norm on the whole batch") {
  for (const Sizes& split : kSplits) {
    compare<nn::BatchNorm1d>({Options(6), {6}, split});
    compare<nn::BatchNorm1d>({Options(6), {6, 5}, split});
    compare<nn::BatchNorm2d>({Options(4), {4, 5, 3}, split});
    compare<nn::BatchNorm3d>({Options(3), {3, 2, 4, 3}, split});
  }
}

TEST_CASE("batch norm over ranks takes every option") {
  for (const auto& options :
       {Options(4).eps(0.1).momentum(0.3), Options(4).momentum(std::nullopt), Options(4).affine(false)})
    for (const Sizes& split : {Sizes{5, 3}, Sizes{2, 0, 1}}) compare<nn::BatchNorm2d>({options, {4, 5, 3}, split});
}

TEST_CASE("batch norm over ranks keeps channels-last") {
  for (const Sizes& split : {Sizes{4, 4}, Sizes{1, 4, 2}, Sizes{0, 3}}) {
    compare<nn::BatchNorm2d>(
        {Options(4), {4, 5, 3}, split, at::kDouble, at::kDouble, 1e-12, at::MemoryFormat::ChannelsLast});
    compare<nn::BatchNorm3d>(
        {Options(4), {4, 2, 5, 3}, split, at::kDouble, at::kDouble, 1e-12, at::MemoryFormat::ChannelsLast3d});
  }
}

// Tolerances: float32 rounds to 6e-8, bfloat16 to 4e-3 of values up to about 10.
TEST_CASE("batch norm over ranks in float and in 16 bits") {
  for (const Sizes& split : {Sizes{4, 4}, Sizes{1, 6, 2}, Sizes{5, 0}}) {
    compare<nn::BatchNorm2d>({Options(4), {4, 5, 3}, split, at::kFloat, at::kFloat, 1e-5});
    for (const auto half : {at::kBFloat16, at::kHalf}) {
      compare<nn::BatchNorm2d>({Options(4), {4, 5, 3}, split, half, at::kFloat, 1e-2});
      compare<nn::BatchNorm2d>({Options(4), {4, 5, 3}, split, half, half, 4e-2});
    }
  }
}

// Sums of squares would leave no digit: (1e4)² in float32 has steps of 8.
TEST_CASE("batch norm over ranks does not cancel far from zero") {
  Case c{Options(4), {4, 5, 3}, {5, 2, 6}, at::kFloat, at::kFloat, 5e-3};
  c.mean = 1e4;
  c.deviation = 1;
  compare<nn::BatchNorm2d>(c);
}

TEST_CASE("batch norm over ranks takes views") {
  std::vector<Tensor> found(2);
  const Tensor whole = at::randn({3, 5, 8, 4}, at::kDouble).permute({2, 3, 0, 1});
  nn::BatchNorm2d plain(4);
  plain->to(at::kDouble);
  const Tensor x = whole.detach().requires_grad_();
  // The gradient of a mean is one number in many places.
  plain->forward(x).square().mean(at::IntArrayRef{2, 3}).sum().backward();
  test::run_ranks(2, [&](Collectives& ranks) {
    nn::BatchNorm2d bn(4);
    bn->to(at::kDouble);
    bn->sync_over(&ranks);
    const Tensor part = whole.narrow(0, 4 * ranks.rank(), 4).detach().requires_grad_();
    bn->forward(part).square().mean(at::IntArrayRef{2, 3}).sum().backward();
    found[static_cast<size_t>(ranks.rank())] = part.grad();
  });
  check_close("input gradient", at::cat(found), x.grad(), 1e-12);
}

TEST_CASE("batch norm over ranks without running statistics") {
  for (const bool affine : {true, false}) {
    Case c{Options(4).affine(affine).track_running_stats(false), {4, 5}, {2, 0, 3}};
    c.evaluates = false;
    compare<nn::BatchNorm1d>(c);
  }
  std::vector<Tensor> trained(2), evaluated(2);
  const Tensor x = at::randn({7, 4}, at::kDouble);
  nn::BatchNorm1d plain(Options(4).track_running_stats(false));
  plain->to(at::kDouble);
  const std::vector<Tensor> parts = x.split_with_sizes({5, 2});
  test::run_ranks(2, [&](Collectives& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    nn::BatchNorm1d bn(Options(4).track_running_stats(false));
    bn->to(at::kDouble);
    bn->sync_over(&ranks);
    trained[rank] = bn->forward(parts[rank]);
    bn->eval();
    evaluated[rank] = bn->forward(parts[rank]);
  });
  check_close("training", at::cat(trained), plain->forward(x), 1e-12);
  // As in Python, where evaluation is never synchronised.
  for (size_t rank = 0; rank < 2; ++rank) CHECK(at::equal(evaluated[rank], plain->forward(parts[rank])));
}

TEST_CASE("the check for one value per channel looks at all ranks") {
  for (const Sizes& split : {Sizes{1, 0}, Sizes{0, 0, 1}, Sizes{0, 0}}) {
    std::vector<std::string> messages(split.size());
    test::run_ranks(static_cast<int64_t>(split.size()), [&](Collectives& ranks) {
      const auto rank = static_cast<size_t>(ranks.rank());
      nn::BatchNorm1d bn(4);
      bn->sync_over(&ranks);
      try {
        bn->forward(at::zeros({split[rank], 4}));
      } catch (const Error& error) {
        messages[rank] = error.what();
      }
    });
    for (size_t rank = 0; rank < split.size(); ++rank)
      CHECK_THAT(messages[rank],
                 ContainsSubstring("[nn.BatchNorm1d]") && ContainsSubstring("in all ranks together") &&
                     ContainsSubstring("on rank " + std::to_string(rank) + " of " + std::to_string(split.size())));
  }
}

namespace {

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  nn::BatchNorm2d first{nullptr};
  torch::nn::Linear linear{nullptr}, head{nullptr};
  nn::BatchNorm1d second{nullptr};
  Net() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).bias(false)));
    first = register_module("first", nn::BatchNorm2d(4));
    linear = register_module("linear", torch::nn::Linear(4 * 4 * 4, 8));
    second = register_module("second", nn::BatchNorm1d(8));
    head = register_module("head", torch::nn::Linear(8, 3));
    for (auto& parameter : parameters()) parameter.set_data(parameter.to(at::kDouble));
    for (auto& buffer : buffers())
      if (buffer.is_floating_point()) buffer.set_data(buffer.to(at::kDouble));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = at::relu(first->forward(conv->forward(x)));
    return head->forward(at::relu(second->forward(linear->forward(y.flatten(1)))));
  }
};

void copy_state(Net& from, Net& to) {
  at::NoGradGuard no_grad;
  for (const auto& parameter : from.named_parameters()) to.named_parameters()[parameter.key()].copy_(parameter.value());
}

void sgd(Net& net) {
  at::NoGradGuard no_grad;
  for (const Tensor& parameter : net.parameters()) {
    parameter.sub_(parameter.grad(), 0.1);
    parameter.mutable_grad() = Tensor();
  }
}

/// Steps of SGD by the averaged gradients of `ranks` with the mean loss of equal shares against the mean loss of the
/// whole batch.
void train_beside_whole(int64_t ranks_count, int64_t accumulate) {
  at::manual_seed(3);
  constexpr int64_t kSteps = 5, kShare = 3;
  const int64_t batch = ranks_count * kShare;
  Net whole;
  std::vector<Net> nets(static_cast<size_t>(ranks_count));
  for (Net& net : nets) copy_state(whole, net);
  const Tensor x = at::randn({kSteps, accumulate, batch, 2, 6, 6}, at::kDouble),
               target = at::randint(3, {kSteps, accumulate, batch}, at::kLong);
  const auto loss = [&](Net& net, const Tensor& inputs, const Tensor& targets) {
    return at::cross_entropy_loss(net.forward(inputs), targets) / accumulate;
  };
  for (int64_t i = 0; i < kSteps; ++i) {
    for (int64_t k = 0; k < accumulate; ++k) loss(whole, x[i][k], target[i][k]).backward();
    sgd(whole);
  }
  test::run_ranks(ranks_count, [&](Collectives& ranks) {
    Net& net = nets[static_cast<size_t>(ranks.rank())];
    nn::sync_norms_over(net, &ranks);
    const int64_t from = ranks.rank() * kShare;
    for (int64_t i = 0; i < kSteps; ++i) {
      for (int64_t k = 0; k < accumulate; ++k)
        loss(net, x[i][k].narrow(0, from, kShare), target[i][k].narrow(0, from, kShare)).backward();
      for (const Tensor& parameter : net.parameters())
        parameter.mutable_grad() = ranks.all_reduce(parameter.grad(), ReduceOp::mean);
      sgd(net);
    }
  });
  for (Net& net : nets) {
    for (const auto& parameter : whole.named_parameters())
      check_close(parameter.key().c_str(), net.named_parameters()[parameter.key()], parameter.value(), 1e-12);
    for (const auto& buffer : whole.named_buffers())
      check_close(buffer.key().c_str(), net.named_buffers()[buffer.key()], buffer.value(), 1e-12);
  }
}

/// Rank 0 of two that have the same samples.
class Mirror final : public test::TextsOfOne {
 public:
  int gathers = 0, reduces = 0, uneven_gathers = 0;
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 2; }
  Tensor all_reduce(const Tensor& value, ReduceOp) override {
    ++reduces;
    return value * 2;
  }
  std::vector<Tensor> all_gather(const Tensor& value, bool) override {
    ++uneven_gathers;
    return {value, value};
  }
  Tensor all_gather_same(const Tensor& value, bool) override {
    ++gathers;
    return at::stack({value, value});
  }
  Tensor broadcast(const Tensor& value, int64_t) override { return value; }
  bool any(bool value) override { return value; }
  void barrier(std::string_view) override {}
};

void compare_mirrored(at::Device device, at::ScalarType input, at::ScalarType layer, double tolerance, bool tracks,
                      at::MemoryFormat format) {
  CAPTURE(input, layer, tracks, format);
  Mirror ranks;
  nn::BatchNorm2d bn(Options(4).track_running_stats(tracks)), whole(Options(4).track_running_stats(tracks));
  for (auto& parameter : bn->parameters()) parameter.set_data(parameter.to(device, layer));
  for (auto& buffer : bn->buffers()) buffer.set_data(buffer.to(device, buffer.is_floating_point() ? layer : at::kLong));
  whole->to(at::kDouble);
  bn->sync_over(&ranks);
  const Tensor x = (at::randn({5, 4, 6, 3}) * 3 + 1).to(input), dy = at::randn({5, 4, 6, 3}).to(input);
  const Result found = step(bn, x.to(device).contiguous(format), dy.to(device).contiguous(format));
  const Result expected = step(whole, at::cat({x, x}).to(at::kDouble), at::cat({dy, dy}).to(at::kDouble));
  check_close("y", found.y.cpu(), expected.y.narrow(0, 0, 5), tolerance);
  check_close("input gradient", found.dx.cpu(), expected.dx.narrow(0, 0, 5), tolerance);
  check_close("weight gradient", found.dw.cpu() * 2, expected.dw, 10 * tolerance);
  check_close("bias gradient", found.db.cpu() * 2, expected.db, 10 * tolerance);
  if (!tracks) return;
  check_close("running mean", found.running_mean.cpu(), expected.running_mean, tolerance);
  check_close("running variance", found.running_var.cpu(), expected.running_var, tolerance);
}

void compare_mirrored(at::Device device) {
  at::manual_seed(5);
  for (const bool tracks : {true, false})
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      compare_mirrored(device, at::kDouble, at::kDouble, 1e-12, tracks, format);
      compare_mirrored(device, at::kFloat, at::kFloat, 1e-5, tracks, format);
      compare_mirrored(device, at::kBFloat16, at::kFloat, 2e-2, tracks, format);
      compare_mirrored(device, at::kHalf, at::kHalf, 2e-2, tracks, format);
    }
}

}  // namespace

TEST_CASE("averaged gradients through synchronised norms train as the whole batch does") {
  for (const int64_t ranks : {2, 3, 4}) train_beside_whole(ranks, 1);
  train_beside_whole(2, 3);
}

TEST_CASE("a synchronised norm communicates once in forward and once in backward if it must") {
  Mirror ranks;
  nn::BatchNorm1d bn(4);
  bn->sync_over(&ranks);
  const Tensor x = at::randn({3, 4});
  bn->forward(x).sum().backward();
  CHECK(ranks.gathers == 1);
  CHECK(ranks.uneven_gathers == 0);  // which would exchange shapes on the host first
  CHECK(ranks.reduces == 0);         // no one wants the gradient of x
  CHECK(bn->bias.grad().defined());
  bn->forward(x.clone().requires_grad_()).sum().backward();
  CHECK(ranks.gathers == 2);
  CHECK(ranks.reduces == 1);
  {
    at::NoGradGuard no_grad;
    CHECK_FALSE(bn->forward(x).requires_grad());
  }
  for (Tensor& parameter : bn->parameters()) parameter.requires_grad_(false);
  for (Tensor& parameter : bn->parameters()) parameter.mutable_grad() = Tensor();
  const Tensor input = x.clone().requires_grad_();
  bn->forward(input).square().sum().backward();
  CHECK(input.grad().defined());
  CHECK_FALSE(bn->weight.grad().defined());
}

TEST_CASE("a synchronised norm has no second derivative and says so") {
  Mirror ranks;
  nn::BatchNorm1d bn(4);
  bn->sync_over(&ranks);
  const Tensor x = at::randn({3, 4}).requires_grad_(), y = bn->forward(x).square().sum();
  const auto differentiate = [&](bool create_graph) {
    return torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, create_graph);
  };
  CHECK_THAT(message_of<Error>([&] { differentiate(true); }), ContainsSubstring("second derivative"));
  CHECK(differentiate(false)[0].defined());
}

TEST_CASE("a synchronised norm next to a rank with the same samples") { compare_mirrored(at::kCPU); }

TEST_CASE("on a GPU, a synchronised norm next to a rank with the same samples", "[gpu]") {
  test::require_gpus(1);
  compare_mirrored(at::kCUDA);
}

}  // namespace sync_batch_norm_test
