#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <any>
#include <array>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <string>

#include "fulgur/capture/captured_program.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/checkpoint.h"
#include "fulgur/nn/saved_tensors_hooks.h"
#include "support/cpu_time.h"
#include "support/expect_error.h"

namespace norm_pool_test {

using namespace fulgur;
using Options = torch::nn::BatchNormOptions;

namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

Tensor images(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return (at::randn(shape) * 2 + 1).to(type).contiguous(kLast);
}

// Largest difference relative to the largest value.
double difference(const Tensor& one, const Tensor& other) {
  const Tensor a = one.to(at::kDouble), b = other.to(at::kDouble);
  return (a - b).abs().max().item<double>() / std::max(1e-12, b.abs().max().item<double>());
}

struct Step {
  Tensor pooled, image_gradient;
};

// One step of training; `x` is used by value.
template <class Forward>
Step step(nn::BatchNorm2d& norm, const Tensor& x, const Tensor& towards, const Forward& forward) {
  const Tensor input = x.detach().clone(kLast).requires_grad_();
  const Tensor pooled = forward(norm, input);
  for (const auto& parameter : norm->parameters()) parameter.mutable_grad() = Tensor();
  (pooled * towards).sum().backward();
  return {pooled.detach(), input.grad()};
}

Step fused(nn::BatchNorm2d& norm, const Tensor& x, const Tensor& towards) {
  return step(norm, x, towards, [](nn::BatchNorm2d& own, const Tensor& in) { return own->forward_max_pool_relu(in); });
}
Step plain(nn::BatchNorm2d& norm, const Tensor& x, const Tensor& towards) {
  return step(norm, x, towards,
              [](nn::BatchNorm2d& own, const Tensor& in) { return at::max_pool2d(own->forward(in), 2).relu_(); });
}

nn::BatchNorm2d layer(const Options& options) {
  at::manual_seed(3);
  nn::BatchNorm2d norm(options);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : norm->parameters()) parameter.copy_(at::randn(parameter.sizes()));
  return norm;
}

// Compared with the three operations in double.
void check_equal(const Options& options, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  INFO(shape << " " << type);
  const bool half = type == at::kBFloat16;
  const double limit = half ? 1e-2 : 2e-5;
  nn::BatchNorm2d one = layer(options), other = layer(options);
  other->to(at::kDouble);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = images(shape, type);
    const Tensor towards = at::randn({shape[0], shape[1], shape[2] / 2, shape[3] / 2}).to(type);
    const Step found = fused(one, x, towards), expected = plain(other, x.to(at::kDouble), towards);
    CHECK(found.pooled.scalar_type() == type);
    CHECK(found.pooled.sizes() == expected.pooled.sizes());
    CHECK(found.pooled.is_contiguous(kLast));
    CHECK(found.image_gradient.scalar_type() == type);
    CHECK(difference(found.pooled, expected.pooled) < limit);
    CHECK(difference(found.image_gradient, expected.image_gradient) < limit);
    for (const auto& parameter : other->named_parameters()) {
      INFO(parameter.key());
      CHECK(difference(one->named_parameters()[parameter.key()].grad(), parameter.value().grad()) < limit);
    }
    for (const auto& buffer : other->named_buffers()) {
      INFO(buffer.key());
      CHECK(difference(one->named_buffers()[buffer.key()], buffer.value()) < 3e-6);
    }
  }
}

}  // namespace

TEST_CASE("norm, max pool and ReLU in one equal the three operations") {
  for (const int64_t channels : {1, 3, 4, 8, 13, 32})
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>{2, 2}, {4, 6}, {5, 4}, {4, 7}, {9, 9}, {28, 28}})
      check_equal(channels, {6, channels, height, width});
  check_equal(8, {1, 8, 70, 70});  // several parts of one image
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{6, 6}, {7, 5}})
    check_equal(11, {16, 11, height, width}, at::kBFloat16);
}

TEST_CASE("norm, max pool and ReLU in one keep the digits of channels with little variance") {
  // Far from 0, and with a first value that is far from the others.
  Tensor x = (at::randn({8, 4, 64, 64}) * 1e-2 + 100).contiguous(kLast);
  x[0][1][0][0] = 0;
  nn::BatchNorm2d one = layer(4), other = layer(4);
  other->to(at::kDouble);
  const Tensor towards = at::randn({8, 4, 32, 32});
  fused(one, x, towards);
  plain(other, x.to(at::kDouble), towards);
  for (int64_t c = 0; c < 4; ++c)
    CHECK(difference(one->running_var[c] - 0.9F, other->running_var[c] - 0.9F) < 1e-2);  // 1e-5 beside 0.9
  CHECK(difference(one->running_mean, other->running_mean) < 1e-6);
}

TEST_CASE("norm, max pool and ReLU in one know every option of batch norm") {
  for (const Options& options :
       {Options(4).eps(0.1).momentum(0.3), Options(4).momentum(std::nullopt), Options(4).affine(false),
        Options(4).track_running_stats(false), Options(4).affine(false).track_running_stats(false)})
    check_equal(options, {8, 4, 6, 6});
}

TEST_CASE("norm, max pool and ReLU in one choose the window's value as LibTorch does") {
  nn::BatchNorm2d one(2), other(2);
  const Tensor towards = at::rand({1, 2, 1, 3}) + 1;
  SECTION("the first of equal values, and none that is not above 0") {
    const Tensor x = at::ones({1, 2, 2, 6}).contiguous(kLast);
    x.select(3, 0).fill_(5);
    x.select(3, 1).fill_(5);
    const Step found = fused(one, x, towards), expected = plain(other, x, towards);
    CHECK(difference(found.pooled, expected.pooled) < 1e-6);
    CHECK(difference(found.image_gradient, expected.image_gradient) < 1e-5);
  }
  SECTION("values that are not finite reach the result and the gradients") {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Tensor x = images({1, 2, 2, 6});
      x[0][1][1][2] = value;
      const Step found = fused(one, x, towards), expected = plain(other, x, towards);
      CHECK(at::equal(found.pooled.isnan(), expected.pooled.isnan()));
      CHECK(at::equal(found.image_gradient.isnan(), expected.image_gradient.isnan()));
      CHECK(found.pooled.select(1, 0).isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("norm, max pool and ReLU in one have the same bits with any number of threads") {
  const Tensor x = images({5, 12, 40, 41}), towards = at::randn({5, 12, 20, 20});
  const int threads = at::get_num_threads();
  std::vector<Step> steps;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    nn::BatchNorm2d norm = layer(12);
    steps.push_back(fused(norm, x, towards));
    steps.push_back({norm->running_var.clone(), norm->weight.grad().clone()});
  }
  at::set_num_threads(threads);
  for (size_t i = 2; i < steps.size(); ++i) {
    CHECK(at::equal(steps[i].pooled, steps[i % 2].pooled));
    CHECK(at::equal(steps[i].image_gradient, steps[i % 2].image_gradient));
  }
}

#if !defined(__clang__) && !defined(__SANITIZE_THREAD__)  // docs/kernels.md
TEST_CASE("norm, max pool and ReLU in one share large images among threads") {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const Tensor x = images({8, 16, 64, 64});
  nn::BatchNorm2d norm = layer(16);
  const at::NoGradGuard no_grad;
  norm->forward_max_pool_relu(x);
  const test::CpuTime time;
  for (int i = 0; i < 200; ++i) norm->forward_max_pool_relu(x);
  const double of_own = time.of_own(), of_others = time.of_others();
  at::set_num_threads(threads);
  CAPTURE(of_own, of_others);
  CHECK(of_others > of_own / 5);
}
#endif

TEST_CASE("norm, max pool and ReLU in one have gradients of gradients") {
  const auto second = [](auto forward) {
    nn::BatchNorm2d norm = layer(5);
    at::manual_seed(8);
    const Tensor x = images({4, 5, 6, 6}).requires_grad_();
    const Tensor pooled = forward(norm, x);
    const Tensor first = torch::autograd::grad({pooled.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    first.square().sum().backward();
    return std::vector<Tensor>{first.detach(), x.grad(), norm->weight.grad(), norm->bias.grad()};
  };
  const auto found = second([](nn::BatchNorm2d& norm, const Tensor& x) { return norm->forward_max_pool_relu(x); });
  const auto expected =
      second([](nn::BatchNorm2d& norm, const Tensor& x) { return at::max_pool2d(norm->forward(x), 2).relu_(); });
  for (size_t i = 0; i < found.size(); ++i) CHECK(difference(found[i], expected[i]) < 1e-4);
}

TEST_CASE("norm, max pool and ReLU in one run hooks of tensors once, with create_graph too") {
  const auto gradients = [](bool create_graph, auto forward) {
    nn::BatchNorm2d norm = layer(5);
    at::manual_seed(8);
    const Tensor x = images({4, 5, 6, 6}).requires_grad_(), inner = x * 2;
    int calls = 0;
    const auto twice = [&calls](const Tensor& gradient) {
      ++calls;
      return gradient * 2;
    };
    inner.register_hook(twice);
    norm->weight.register_hook(twice);
    norm->bias.register_hook(twice);
    forward(norm, inner).square().sum().backward({}, /*retain_graph=*/true, create_graph);
    CHECK(calls == 3);
    return std::vector<Tensor>{x.grad().detach(), norm->weight.grad().detach(), norm->bias.grad().detach()};
  };
  for (const bool create_graph : {false, true}) {
    const auto found =
        gradients(create_graph, [](nn::BatchNorm2d& norm, const Tensor& x) { return norm->forward_max_pool_relu(x); });
    const auto expected = gradients(create_graph, [](nn::BatchNorm2d& norm, const Tensor& x) {
      return at::max_pool2d(norm->forward(x), 2).relu_();
    });
    for (size_t i = 0; i < found.size(); ++i) CHECK(difference(found[i], expected[i]) < 1e-5);
  }
}

TEST_CASE("norm, max pool and ReLU in one take saved tensors in any layout") {
  const Tensor x = images({4, 6, 8, 9}), towards = at::randn({4, 6, 4, 4});
  nn::BatchNorm2d one = layer(6), other = layer(6);
  const Step expected = fused(one, x, towards);
  const Step found = step(other, x, towards, [](nn::BatchNorm2d& norm, const Tensor& in) {
    const nn::SavedTensorsHooks hooks(
        [](const Tensor& tensor) -> std::any { return tensor.detach().clone(at::MemoryFormat::Contiguous); },
        [](const std::any& packed) { return std::any_cast<Tensor>(packed); });
    return norm->forward_max_pool_relu(in);
  });
  CHECK(at::equal(found.image_gradient, expected.image_gradient));
  CHECK(at::equal(one->weight.grad(), other->weight.grad()));
}

TEST_CASE("norm, max pool and ReLU in one take saved tensors that hooks have rounded, all of them or large ones") {
  const Tensor x = images({4, 6, 8, 9}), towards = at::randn({4, 6, 4, 4});
  nn::BatchNorm2d one = layer(6);
  const Step expected = fused(one, x, towards);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble})
    for (const int64_t least : {int64_t{0}, x.numel()}) {
      CAPTURE(type, least);
      nn::BatchNorm2d other = layer(6);
      const Step found = step(other, x, towards, [&](nn::BatchNorm2d& norm, const Tensor& in) {
        const nn::SavedTensorsHooks hooks(
            [=](const Tensor& tensor) -> std::any {
              const bool rounds = tensor.is_floating_point() && tensor.numel() >= least;
              return rounds ? tensor.detach().to(type) : tensor.detach();
            },
            [](const std::any& packed) {
              const Tensor& tensor = std::any_cast<const Tensor&>(packed);
              return tensor.is_floating_point() ? tensor.to(at::kFloat) : tensor;
            });
        return norm->forward_max_pool_relu(in);
      });
      CHECK(difference(found.image_gradient, expected.image_gradient) < 2e-2);
      CHECK(difference(other->weight.grad(), one->weight.grad()) < 2e-2);
      CHECK(difference(other->bias.grad(), one->bias.grad()) < 1e-5);
    }
}

// In double, LibTorch's statistics of equal values are exact.
TEST_CASE("norm, max pool and ReLU in one normalise equal and tiny values as LibTorch does in double") {
  const auto check = [](const Tensor& x, double eps) {
    const Options options = Options(x.size(1)).eps(eps);
    nn::BatchNorm2d one = layer(options), other = layer(options);
    other->to(at::kDouble);
    const Tensor towards = at::randn({x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2});
    const Step found = fused(one, x, towards), expected = plain(other, x.to(at::kDouble), towards);
    CAPTURE(x.flatten()[0].item<double>(), eps);
    CHECK(difference(found.pooled, expected.pooled) < 1e-5);
    CHECK(difference(found.image_gradient, expected.image_gradient) < 1e-4);
    CHECK(one->running_var.ge(0).all().item<bool>());
  };
  for (const double value : {0.0, 0.1, 30.7, 100000.7, 1000000.3})
    for (const double eps : {0.0, 1e-5}) check(at::full({8, 4, 32, 32}, value).contiguous(kLast), eps);
  for (const double scale : {1e-20, 1e-19, 1e-18, 1e16}) check(images({8, 4, 8, 8}) * scale, 0);
}

TEST_CASE("norm, max pool and ReLU in one take statistics of any layout, and refuse other sizes and types") {
  nn::BatchNorm2d norm = layer(64);
  norm->eval();
  const Tensor both = at::rand({64, 2}) + 0.5, x = images({4, 64, 6, 6});
  const at::NoGradGuard no_grad;
  norm->running_mean = both.select(1, 0);
  norm->running_var = both.select(1, 1);
  const auto plain_pool = [&] { return at::max_pool2d(norm->forward(x), 2).relu_(); };
  CHECK(difference(norm->forward_max_pool_relu(x), plain_pool()) < 1e-6);
  norm->running_mean = at::ones({1}).expand({64});
  CHECK(difference(norm->forward_max_pool_relu(x), plain_pool()) < 1e-6);
  for (const Tensor& other : {at::zeros({3}), at::zeros({64}, at::kDouble)}) {
    norm->running_mean = other;
    CHECK_THROWS(norm->forward_max_pool_relu(x));
  }
  norm->running_mean = at::zeros({64});
  norm->train();
  norm->bias = at::zeros({3});
  CHECK_THROWS(norm->forward_max_pool_relu(x));
}

TEST_CASE(
    "norm, max pool and ReLU are three operations while they are traced, and one that is called has no gradient") {
  nn::BatchNorm2d norm = layer(8);
  const Tensor x = images({4, 8, 6, 6});
  norm->forward_max_pool_relu(x);  // moves the statistics
  norm->eval();
  {
    const at::NoGradGuard no_grad;
    const Tensor expected = at::max_pool2d(norm->forward(x), 2).relu_(), one = norm->forward_max_pool_relu(x);
    const c10::impl::IncludeDispatchKeyGuard traced(c10::DispatchKey::Tracer);
    CHECK(at::equal(norm->forward_max_pool_relu(x), expected));
    CHECK_FALSE(at::equal(one, expected));  // by rounding: the comparison above sees which one it is
  }
  using Pooled = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                    const std::optional<Tensor>&, const std::optional<Tensor>&, bool);
  const auto operation = c10::Dispatcher::singleton().findSchemaOrThrow("fulgur_nn::norm_pool", "").typed<Pooled>();
  const Tensor learned = x.detach().clone(kLast).requires_grad_();
  const auto pooled = operation.call(learned, at::zeros({8}), at::ones({8}), {}, {}, true);
  CHECK_THROWS_WITH(std::get<0>(pooled).sum().backward(), Catch::Matchers::ContainsSubstring("norm_pool"));
}

TEST_CASE("norm, max pool and ReLU in one let the bias be changed before the backward") {
  nn::BatchNorm2d norm = layer(3);
  const Tensor pooled = norm->forward_max_pool_relu(images({4, 3, 6, 6}));
  {
    const at::NoGradGuard no_grad;
    norm->bias.add_(1);
  }
  CHECK_NOTHROW(pooled.sum().backward());
}

TEST_CASE("norm, max pool and ReLU in one evaluate with the running statistics") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const Options& options : {Options(8), Options(13), Options(8).affine(false), Options(8).eps(0.1)}) {
      nn::BatchNorm2d norm = layer(options);
      const Tensor x = images({4, options.num_features(), 6, 7}, type);
      norm->forward_max_pool_relu(x);  // moves the statistics
      norm->eval();
      const Tensor mean = norm->running_mean.clone(), expected = at::max_pool2d(norm->forward(x), 2).relu_();
      const at::NoGradGuard no_grad;
      const Tensor found = norm->forward_max_pool_relu(x);
      CHECK(found.scalar_type() == type);
      CHECK(found.is_contiguous(kLast));
      CHECK(difference(found, expected) < (type == at::kFloat ? 1e-6 : 1e-2));
      CHECK(at::equal(norm->running_mean, mean));
      norm->to(type);
      CHECK(difference(norm->forward_max_pool_relu(x), expected) < (type == at::kFloat ? 1e-6 : 2e-2));
    }
}

TEST_CASE("norm, max pool and ReLU in one keep every NaN") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int32_t bits : {-1, 0x7fffffff, 0x7f800001, 0x7fc00000}) {
      INFO(type << " " << bits);
      nn::BatchNorm2d norm = layer(9);
      {
        const at::NoGradGuard no_grad;
        norm->weight.view(at::kInt)[2] = bits;
        norm->bias.view(at::kInt)[8] = bits;
      }
      const Tensor x = images({4, 9, 4, 4}, type).requires_grad_();
      const Tensor pooled = norm->forward_max_pool_relu(x);
      pooled.sum().backward();
      for (int64_t c = 0; c < 9; ++c) {
        INFO(c);
        CHECK(pooled.select(1, c).isnan().all().item<bool>() == (c == 2 || c == 8));
        CHECK(x.grad().select(1, c).isnan().all().item<bool>() == (c == 2));
      }
    }
}

TEST_CASE("norm, max pool and ReLU are the three operations for other inputs, and in evaluation with gradients") {
  const auto check_bits = [](const Options& options, const Tensor& x, bool training) {
    nn::BatchNorm2d one = layer(options), other = layer(options);
    for (nn::BatchNorm2d* norm : {&one, &other}) {
      (*norm)->to(x.scalar_type());
      (*norm)->train(training);
    }
    CHECK(at::equal(one->forward_max_pool_relu(x), at::max_pool2d(other->forward(x), 2).relu_()));
    CHECK(at::equal(one->running_mean, other->running_mean));
  };
  check_bits(3, at::randn({4, 3, 6, 6}), true);  // channels first
  check_bits(3, images({4, 3, 6, 6}, at::kDouble), true);
  check_bits(3, images({4, 3, 6, 6}), false);
}

TEST_CASE("norm, max pool and ReLU in one refuse what the layers refuse") {
  nn::BatchNorm2d norm(3);
  CHECK_THROWS_WITH(norm->forward_max_pool_relu(images({4, 5, 6, 6})),
                    Catch::Matchers::ContainsSubstring("3 channels in dimension 1; got [4, 5, 6, 6]"));
  CHECK_THROWS(norm->forward_max_pool_relu(images({4, 3, 1, 6})));
  norm->to(at::kDouble);
  CHECK_THROWS(norm->forward_max_pool_relu(images({4, 3, 6, 6})));
}

// The most that is alive at once in a captured step, whose replays have the bits of eager steps.
int64_t peak_of_captured(at::IntArrayRef shape, at::ScalarType type, bool plan_memory) {
  INFO(shape << " " << type << " " << plan_memory);
  const int64_t channels = shape[1];
  at::manual_seed(4);
  Tensor x = images({shape[0], 3, shape[2], shape[3]}, type);
  nn::BatchNorm2d one = layer(channels), other = layer(channels);
  const Tensor weight = (at::randn({channels, 3, 3, 3}) * 0.3).to(type),
               towards = at::randn({shape[0], channels, shape[2] / 2, shape[3] / 2}).to(type);
  const auto train = [&](nn::BatchNorm2d& norm, const Tensor& own) {
    const Tensor made = at::conv2d(x, own, {}, 1, 1);
    (norm->forward_max_pool_relu(made) * towards).sum().backward();
  };
  Tensor mine = weight.clone().requires_grad_(), theirs = weight.clone().requires_grad_();
  for (auto* const norm : {&one, &other})
    for (const Tensor& parameter : (*norm)->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
  for (Tensor* const own : {&mine, &theirs}) own->mutable_grad() = at::zeros_like(*own);
  RecordOptions options;
  options.plan_memory = plan_memory;
  const auto program = CapturedProgram::record([&] { train(one, mine); }, options);
  train(other, theirs);
  program->prepare();
  CHECK(!program->check_replay());
  for (int i = 0; i < 3; ++i) {
    x.copy_(images(x.sizes(), type));
    program->replay();
    train(other, theirs);
    CHECK(at::equal(mine.grad(), theirs.grad()));
    CHECK(at::equal(one->weight.grad(), other->weight.grad()));
    CHECK(at::equal(one->bias.grad(), other->bias.grad()));
    CHECK(at::equal(one->running_var, other->running_var));
  }
  for (const char* const name : {"batch_statistics", "norm_pool", "norm_pool_gradients"})
    CHECK_THAT(program->listing(), Catch::Matchers::ContainsSubstring("fulgur_nn::" + std::string(name) +
                                                                      " as fulgur_nn::" + name + ".out"));
  return program->summary().peak_live_bytes;
}

TEST_CASE("norm, max pool and ReLU in one are captured, and write the gradient over images that nothing uses later") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const std::array<int64_t, 4>& shape : {std::array<int64_t, 4>{4, 16, 8, 8}, {3, 5, 9, 7}, {16, 32, 28, 28}}) {
      const int64_t bytes = shape[0] * shape[1] * shape[2] * shape[3] * (type == at::kFloat ? 4 : 2);
      // Now the peak is in the forward: images and what is kept of them.
      CHECK(peak_of_captured(shape, type, false) - peak_of_captured(shape, type, true) > bytes / 2);
    }
}

TEST_CASE("norm, max pool and ReLU in one are captured in evaluations") {
  nn::BatchNorm2d norm = layer(5);
  norm->eval();
  Tensor x = images({3, 5, 9, 7}), out;
  const at::NoGradGuard no_grad;
  const auto program = CapturedProgram::record([&] { out = norm->forward_max_pool_relu(x * 2); });
  program->prepare();
  CHECK(!program->check_replay());
  x.copy_(images({3, 5, 9, 7}));
  program->replay();
  CHECK(at::equal(out, norm->forward_max_pool_relu(x * 2)));
  CHECK_THAT(program->listing(), Catch::Matchers::ContainsSubstring("as fulgur_nn::norm_pool.out"));
}

TEST_CASE("norm, max pool and ReLU in one refuse results of another shape, type or layout") {
  const Tensor x = images({2, 4, 6, 6}), mean = at::zeros({4}), pooled = images({2, 4, 3, 3});
  const Tensor bytes = pooled.to(at::kByte), narrow = at::zeros({3}), contiguous = at::zeros({2, 4, 3, 3});
  const auto call = [](const char* name, std::vector<c10::IValue> arguments) {
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "out").callBoxed(&arguments);
  };
  using Values = std::vector<c10::IValue>;
  const at::NoGradGuard no_grad;
  const c10::IValue none;
  CHECK_NOTHROW(call("fulgur_nn::batch_statistics", Values{x, 1e-5, mean.clone(), mean.clone(), mean.clone()}));
  CHECK_THROWS(call("fulgur_nn::batch_statistics", Values{x, 1e-5, mean.clone(), narrow, mean.clone()}));
  CHECK_NOTHROW(call("fulgur_nn::norm_pool", Values{x, mean, mean, none, none, true, pooled, bytes, pooled.clone()}));
  CHECK_THROWS(call("fulgur_nn::norm_pool", Values{x, mean, mean, none, none, true, contiguous, bytes, pooled}));
  CHECK_THROWS(call("fulgur_nn::norm_pool", Values{x, mean, mean, none, none, true, pooled, pooled.clone(), pooled}));
  CHECK_THROWS(call("fulgur_nn::norm_pool", Values{x, mean, mean, none, none, false, pooled, bytes, pooled.clone()}));
  const auto gradients = [&](bool for_images, const Tensor& dx, const Tensor& dweight) {
    call("fulgur_nn::norm_pool_gradients",
         Values{pooled, x, bytes, pooled, mean, mean, none, for_images, dx, dweight, mean.clone()});
  };
  CHECK_NOTHROW(gradients(true, at::empty_like(x), mean.clone()));
  CHECK_THROWS(gradients(true, at::zeros({2, 4, 6, 6}), mean.clone()));
  CHECK_THROWS(gradients(true, at::empty_like(x), narrow));
  CHECK_THROWS(gradients(false, at::empty_like(x), mean.clone()));
}

TEST_CASE("norm, max pool and ReLU in one train under a checkpoint of activations") {
  const Tensor x = images({4, 6, 8, 8}), towards = at::randn({4, 6, 4, 4});
  nn::BatchNorm2d one = layer(6), other = layer(6);
  const Step expected = fused(one, x, towards);
  const Step found = step(other, x, towards, [](nn::BatchNorm2d& norm, const Tensor& in) {
    return nn::checkpoint([&norm](const Tensor& own) { return norm->forward_max_pool_relu(own); }, in);
  });
  CHECK(at::equal(found.pooled, expected.pooled));
  CHECK(at::equal(found.image_gradient, expected.image_gradient));
  CHECK(at::equal(one->weight.grad(), other->weight.grad()));
  CHECK(at::equal(one->running_var, other->running_var));
}

}  // namespace norm_pool_test
