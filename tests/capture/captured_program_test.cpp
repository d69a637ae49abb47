#include <ATen/Functions.h>

#include <catch2/matchers/catch_matchers_string.hpp>

#include "capture/twin.h"
#include "fulgur/capture/capture_guards.h"
#include "fulgur/core/text/errors.h"

namespace captured_program_test {

using namespace capture_test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("results that something refers to are written by each replay, others share memory") {
  const Tensor x = at::randn({1000});
  Tensor sum, kept_elsewhere;
  const auto program = CapturedProgram::record([&] {
    Tensor h = x;
    for (int i = 0; i < 10; ++i) h = at::tanh(h * 1.5);
    kept_elsewhere = h;
    sum = h.sum();
  });
  program->prepare();
  CHECK(!program->check_replay());
  const CaptureSummary summary = program->summary();
  CHECK(summary.operations >= 21);
  CHECK(summary.planned_bytes <= 2 * 4096);
  CHECK(summary.separate_bytes == 4096 - 64 + 64);
  x.fill_(0.5);
  program->replay();
  Tensor h = x;
  for (int i = 0; i < 10; ++i) h = at::tanh(h * 1.5);
  CHECK(at::equal(kept_elsewhere, h));
  CHECK(at::equal(sum, h.sum()));
  CHECK_THAT(program->listing(), ContainsSubstring("10 typed aten::mul.Tensor as aten::mul.out"));
}

TEST_CASE("a recorded step is undone: tensors, gradients in memory and generators") {
  at::manual_seed(5);
  const Tensor x = at::randn({4});
  Tensor weight = at::randn({4}), noise;
  const Tensor before = weight.clone(), generator = generator_state();
  const auto program = CapturedProgram::record([&] {
    noise = at::rand({4});
    weight.add_(x * noise);
  });
  const Tensor after = weight.clone(), generator_after = generator_state();
  program->undo();
  CHECK(at::equal(weight, before));
  CHECK(at::equal(generator, generator_state()));
  program->prepare();
  CHECK(!program->check_replay(/*undo=*/true));
  CHECK(at::equal(weight, before));
  program->replay();
  CHECK(at::equal(weight, after));
  CHECK(at::equal(generator_after, generator_state()));
  program->forget_state();
  CHECK_THROWS_AS(program->undo(), fulgur::Error);
  CHECK_THROWS_AS(program->check_replay(), fulgur::Error);
}

// The bytes that results of `step` share in a replay, whose values are those of an eager step.
int64_t planned_bytes(Tensor& x, const std::function<Tensor(const Tensor&)>& step) {
  Tensor out = at::zeros({1000});
  const auto program = CapturedProgram::record([&] { out.copy_(step(x)); });
  program->prepare();
  CHECK(!program->check_replay());
  for (int i = 0; i < 2; ++i) {
    x.copy_(at::randn({1000}));
    program->replay();
    CHECK(same_bits(out, step(x)));
  }
  return program->summary().planned_bytes;
}

TEST_CASE("a result is written over an argument that is not used later") {
  constexpr int64_t kOne = (1000 * 4 + 63) / 64 * 64;
  Tensor x = at::randn({1000}), elsewhere;
  const Tensor given = at::randn({1000});
  const auto gradient = [&](const Tensor& dy) { return at::threshold_backward(dy, given, 0); };
  CHECK(planned_bytes(x, [&](const Tensor& v) { return gradient(v * 2); }) == kOne);
  // A chain, and a view of the result.
  CHECK(planned_bytes(x, [&](const Tensor& v) {
          return gradient(gradient(v * 2)).view({10, 100}).view({1000});
        }) == kOne);

  // The argument is used later, also by a view of it; the step uses it twice; it is no result, or a constant.
  CHECK(planned_bytes(x, [&](const Tensor& v) {
          const Tensor dy = v * 2, got = gradient(dy);
          return got.add_(dy);
        }) == 2 * kOne);
  CHECK(planned_bytes(x, [&](const Tensor& v) {
          const Tensor dy = v * 2, view = dy.view({10, 100}), got = gradient(dy);
          return got.add_(view.view({1000}));
        }) == 2 * kOne);
  CHECK(planned_bytes(x, [&](const Tensor& v) {
          const Tensor dy = v * 2;
          return at::threshold_backward(dy, dy, 0);
        }) == 2 * kOne);
  CHECK(planned_bytes(x, [&](const Tensor& v) { return gradient(v); }) == kOne);
  CHECK(planned_bytes(x, [&](const Tensor& v) { return gradient(at::ones({1000})).add_(v); }) == kOne);

  // Something refers to the argument after the step, or it has other strides or another size.
  CHECK(planned_bytes(x, [&](const Tensor& v) { return gradient(elsewhere = v * 2); }) == kOne);
  CHECK(same_bits(elsewhere, x * 2));
  CHECK(planned_bytes(x, [&](const Tensor& v) {
          const Tensor dy = (v * 2).view({100, 10}).t(), of = given.view({10, 100});
          return at::threshold_backward(dy, of, 0).t().reshape({1000});
        }) >= kOne);
  CHECK(planned_bytes(x, [&](const Tensor& v) {
          return at::threshold_backward(at::cat({v, v}).slice(0, 0, 1000), given, 0);
        }) >= 2 * kOne);
}

TEST_CASE("a program that is destroyed leaves its results valid") {
  Tensor kept;
  const Tensor x = at::randn({64});
  {
    const auto program = CapturedProgram::record([&] { kept = at::relu(x * 2) + 1; });
    program->prepare();
    program->replay();
  }
  CHECK(at::equal(kept, at::relu(x * 2) + 1));
}

TEST_CASE("the same generator, also one of the step's own, gives the numbers of an eager step") {
  Tensor out = at::zeros({8});
  auto own = at::detail::getDefaultCPUGenerator().clone();
  const auto step = [&] { out.add_(at::rand({8}, own, at::kFloat)).add_(at::dropout(at::ones({8}), 0.5, true)); };
  at::manual_seed(1);
  own.set_current_seed(3);
  for (int i = 0; i < 5; ++i) step();
  const Tensor eager = out.clone();
  out.zero_();
  at::manual_seed(1);
  own.set_current_seed(3);
  const auto program = CapturedProgram::record(step);
  REQUIRE(program->refusals().empty());
  program->prepare();
  REQUIRE(!program->check_replay());
  for (int i = 1; i < 5; ++i) program->replay();
  CHECK(at::equal(out, eager));
}

TEST_CASE("a kernel that uses its output as scratch memory is not called by its overload with out") {
  const Tensor target = at::rand({5}), input = at::rand({5});
  Tensor loss;
  const auto program = CapturedProgram::record([&] { loss = at::binary_cross_entropy(input, target); });
  program->prepare();
  CHECK(!program->check_replay());
  input.fill_(0.25);
  program->replay();
  CHECK(same_bits(loss, at::binary_cross_entropy(input, target)));
}

TEST_CASE("scratch memory behind a result is not compared") {
  const Tensor x = at::randn({4, 2}), y = at::randn({4, 2});
  Tensor loss;
  const auto program = CapturedProgram::record([&] { loss = at::mse_loss(x, y); });
  program->undo();
  program->prepare();
  CHECK(!program->check_replay(/*undo=*/true));
  x.fill_(0.5);
  program->replay();
  CHECK(same_bits(loss, at::mse_loss(x, y)));
}

TEST_CASE("products of matrices with a bias have the bits of eager ones, whatever the bias and the factors are") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const int64_t rows : {1, 3, 64, 4096}) {
      Tensor x = at::randn({rows, 5}).to(type);
      const Tensor w = at::randn({9, 5}).to(type), columns = at::randn({9}).to(type);
      for (const Tensor& bias : {columns, columns.unsqueeze(0), at::randn({18}).to(type).slice(0, 0, 18, 2),
                                 at::randn({rows, 9}).to(type), at::full({9}, NAN).to(type)})
        for (const double beta : {1.0, 0.0, 0.5})
          for (const double alpha : {1.0, 2.0}) {
            INFO(type << " " << bias.sizes() << " " << rows << " " << beta << " " << alpha);
            Tensor out;
            const auto program = CapturedProgram::record([&] { out = at::addmm(bias, x, w.t(), beta, alpha); });
            program->prepare();
            REQUIRE(!program->check_replay());
            x.mul_(-1.25);
            bias.mul_(0.5);
            program->replay();
            CHECK(same_bits(out, at::addmm(bias, x, w.t(), beta, alpha)));
          }
    }
}

// A captured copy of `from` into a tensor with the strides of `like` has its values.
void check_copy(const Tensor& from, const Tensor& like) {
  INFO(from.sizes() << " " << from.strides() << " " << like.strides() << " " << from.scalar_type());
  Tensor to = at::empty_like(like);
  const auto program = CapturedProgram::record([&] { to.copy_(from); });
  program->prepare();
  CHECK(!program->check_replay());
  for (int i = 0; i < 2; ++i) {
    from.copy_(at::randint(-100, 100, from.sizes()));
    to.zero_();
    program->replay();
    CHECK(at::equal(to, from));
  }
}

TEST_CASE("copies into another order of dimensions have the values of eager ones") {
  const auto last = at::MemoryFormat::ChannelsLast;
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kInt, at::kShort, at::kDouble, at::kByte}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{128, 64, 7, 7},
                                              {3, 40, 11, 13},
                                              {2, 8, 64, 64},
                                              {1, 100, 9, 9},
                                              {5, 64, 1, 40},
                                              {4, 7, 33, 33},
                                              {700, 16, 3, 3},
                                              {9, 33, 1, 17},
                                              {2, 2048, 1, 2}}) {
      const Tensor plain = at::zeros(shape, type), images = plain.contiguous(last);
      check_copy(images, plain);
      check_copy(plain, images);
      check_copy(plain.transpose(0, 1).contiguous().transpose(0, 1), images);
      check_copy(plain.permute({2, 0, 3, 1}).contiguous().permute({1, 3, 0, 2}), plain);
    }
    const Tensor matrix = at::zeros({65, 130}, type), transposed = at::zeros({130, 65}, type).t();
    check_copy(matrix, transposed);
    check_copy(transposed, matrix);
    check_copy(at::zeros({130, 70}, type).slice(1, 0, 65).t(), matrix);
    check_copy(at::zeros({65, 1}, type).expand({65, 130}).clone(), transposed);
  }
}

TEST_CASE("two recordings that wait for their replay do not disturb each other") {
  const Tensor x = at::randn({4});
  Tensor out = at::zeros({4});
  const auto one = CapturedProgram::record([&] { out.add_(x * 2); });
  const auto two = CapturedProgram::record([&] { out.add_(x * 2); });
  CHECK(!two->difference(*one));
  two->prepare();
  two->replay();
  CHECK(at::allclose(out, x * 6));
}

class Layers : public torch::nn::Module {
 public:
  Layers() {
    weight = register_parameter("weight", at::randn({3}));
    mean = register_buffer("mean", at::zeros({3}));
  }
  Tensor weight, mean;
};

TEST_CASE("guards name what has changed since the recording") {
  Layers layers;
  fulgur::CaptureGuards guards(layers);
  CHECK(!guards.changed());
  layers.weight.data().fill_(2);
  CHECK(!guards.changed());
  layers.eval();
  CHECK_THAT(*guards.changed(), ContainsSubstring("training mode"));
  layers.train();
  CHECK(!guards.changed());
  layers.weight.requires_grad_(false);
  CHECK_THAT(*guards.changed(), ContainsSubstring("'weight'") && ContainsSubstring("requires_grad"));
  layers.weight.requires_grad_(true);
  layers.mean.set_data(at::zeros({3}));
  CHECK_THAT(*guards.changed(), ContainsSubstring("'mean'") && ContainsSubstring("memory"));
  guards = fulgur::CaptureGuards(layers);
  layers.mean.set_data(layers.mean.to(at::kDouble));
  CHECK_THAT(*guards.changed(), ContainsSubstring("'mean'"));
  Tensor extra = at::zeros({2, 3});
  guards = fulgur::CaptureGuards(layers);
  guards.add("input", extra);
  extra.t_();
  CHECK_THAT(*guards.changed(), ContainsSubstring("'input'") && ContainsSubstring("shape"));
}

struct CountedWarnings final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override { ++count; }
  int count = 0;
};

TEST_CASE("replays of losses of one sample give no warnings, although their kernels use the result as scratch memory") {
  const Tensor x = at::randn({1, 1}), y = at::randn({1, 1});
  Tensor sum = at::zeros({});
  const auto program = CapturedProgram::record(
      [&] { sum.add_(at::mse_loss(x, y)).add_(at::smooth_l1_loss(x, y)).add_(at::huber_loss(x, y)); });
  const float once = sum.item<float>();
  program->prepare();
  CountedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard counts(&warnings);
  program->replay();
  CHECK(warnings.count == 0);
  CHECK(sum.item<float>() > once * 1.9F);
}

}  // namespace captured_program_test
