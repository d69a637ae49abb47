// Code of the host that fills tensors: by data_ptr(), an accessor or from_blob.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>

#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>

#include "capture/twin.h"
#include "fulgur/capture/step_capture.h"
#include "fulgur/core/text/errors.h"

namespace host_writes_test {

using namespace capture_test;
using Catch::Matchers::ContainsSubstring;

namespace {

RecordOptions with_state(const Tensor& scale) {
  RecordOptions options;
  options.state = {{"buffer 'head.scale'", scale}};
  options.place = [] { return "training_step, module 'head' (Head)"; };
  return options;
}

// The refusal of a step; empty if it is recorded.
std::string refusal_of(const std::function<void()>& step, const RecordOptions& options = {}) {
  const auto program = CapturedProgram::record(step, options);
  return program->refusals().empty() ? "" : program->refusals().front().text();
}

}  // namespace

TEST_CASE("a tensor of the state that host code writes is named with its module, and the operation is not") {
  const Tensor x = at::randn({3});
  Tensor out = at::zeros({3}), scale = at::zeros({3});
  const auto check = [&](const std::function<void()>& step) {
    CHECK_THAT(refusal_of(step, with_state(scale)),
               ContainsSubstring("host code in training_step, module 'head' (Head): it writes the memory of buffer "
                                 "'head.scale' of shape [3] itself") &&
                   !ContainsSubstring("aten::"));
  };
  // Before an operation reads it.
  check([&] {
    scale.mutable_data_ptr<float>()[1] += 1;
    out.add_(x * scale);
  });
  // Between two operations.
  check([&] {
    scale.mul_(2);
    scale.accessor<float, 1>()[1] += 1;
    out.add_(x * scale);
  });
  // After the last one, or without any.
  CHECK_THAT(refusal_of(
                 [&] {
                   out.add_(x * scale);
                   scale.accessor<float, 1>()[1] += 1;
                 },
                 with_state(scale)),
             ContainsSubstring("buffer 'head.scale' itself"));
  CHECK_THAT(refusal_of(
                 [&] {
                   out.add_(x);
                   scale.accessor<float, 1>()[1] += 1;
                 },
                 with_state(scale)),
             ContainsSubstring("buffer 'head.scale' itself"));
  CHECK(refusal_of([&] { scale.add_(out); }, with_state(scale)).empty());
}

TEST_CASE("results that host code changes are refused, although they are constants otherwise") {
  const Tensor x = at::randn({3}), many = at::zeros({1 << 16});
  Tensor out = at::zeros({3});
  float number = 1;
  RecordOptions options;
  options.place = [] { return "training_step"; };
  const char* const found = "host code in training_step: it writes the memory of a tensor of shape [3]";
  CHECK_THAT(refusal_of(
                 [&] {
                   const Tensor factor = at::ones_like(x);
                   factor.mutable_data_ptr<float>()[0] = ++number;
                   out.add_(x * factor);
                 },
                 options),
             ContainsSubstring(found));
  CHECK_THAT(refusal_of([&] {
               const Tensor large = at::ones_like(many);
               large.mutable_data_ptr<float>()[9] = ++number;
               out.add_(large.slice(0, 9, 12));
             }),
             ContainsSubstring("host code: it writes the memory of a tensor of shape [65536] itself"));
  // Memory without values, which the host fills with the same bytes as before.
  const auto fills = [&] {
    const Tensor factor = at::empty({3});
    for (int i = 0; i < 3; ++i) factor.mutable_data_ptr<float>()[i] = 2;
    out.add_(x * factor);
  };
  for (int i = 0; i < 3; ++i) CHECK_THAT(refusal_of(fills, options), ContainsSubstring(found));
  // A view is no value.
  const auto fills_view = [&] {
    const Tensor factor = at::empty({2, 3});
    const Tensor part = factor[1];
    part.fill_(3);
    out.add_(x * part);
  };
  CHECK(refusal_of(fills_view, options).empty());
  // The loss, after its last operation.
  Tensor loss;
  CHECK_THAT(refusal_of([&] {
               loss = x.sum();
               *loss.mutable_data_ptr<float>() = 7;
             }),
             ContainsSubstring("host code: it writes the memory of a tensor"));
}

TEST_CASE("memory larger than what is compared by a checksum is not folded into a constant") {
  const int64_t size = (1 << 18) + 16;
  Tensor out = at::zeros({size});
  const auto program = CapturedProgram::record([&] {
    const Tensor factor = at::ones_like(out);
    factor.mutable_data_ptr<float>()[size - 1] = 5;
    out.add_(factor);
  });
  program->prepare();
  CHECK_THAT(program->check_replay().value_or(""), ContainsSubstring("a replay gives other values"));
}

TEST_CASE("tensors around memory of the host are named by their place") {
  const Tensor x = at::randn({3});
  Tensor out = at::zeros({3});
  // Gone at the end of the step: a replay would read freed memory.
  const auto local = [&] {
    std::vector<float> values = {1, 2, 3};
    out.add_(x * at::from_blob(values.data(), {3}, at::kFloat));
  };
  RecordOptions options;
  options.place = [] { return "training_step, module 'head' (Head)"; };
  CHECK_THAT(refusal_of(local, options),
             ContainsSubstring("host code in training_step, module 'head' (Head): it makes a tensor of shape [3] "
                               "around its own memory in each step (from_blob)"));

  // Kept between steps.
  std::vector<float> kept = {1, 2, 3};
  Tensor around;
  const auto step = [&] {
    kept[0] += 1;
    around = at::from_blob(kept.data(), {3}, at::kFloat);
    out.add_(x * around);
  };
  const auto first = CapturedProgram::record(step, options);
  CHECK(first->refusals().empty());
  options.previous = first.get();
  const auto second = CapturedProgram::record(step, options);
  const std::string difference = second->difference(*first).value_or("");
  CHECK_THAT(difference, ContainsSubstring(
                             "host code in training_step, module 'head' (Head) gives the step a tensor of shape [3]") &&
                             !ContainsSubstring("aten::"));

  // Written through another pointer.
  around = at::from_blob(kept.data(), {3}, at::kFloat);
  const auto writes = [&] {
    kept[0] += 1;
    out.add_(x * around);
  };
  options.previous = nullptr;
  const auto before = CapturedProgram::record(writes, options);
  options.previous = before.get();
  CHECK_THAT(refusal_of(writes, options), ContainsSubstring("it writes the memory of a tensor of shape [3] itself"));
}

TEST_CASE("a step that is broken off or refused is undone to the bit: state that the host wrote, seeds") {
  at::manual_seed(3);
  const Tensor x = at::randn({3});
  Tensor weight = at::zeros({3}), count = at::zeros({1}), unused = at::zeros({2});
  at::Generator own = at::detail::getDefaultCPUGenerator().clone();
  bool throws = false, writes = true;
  const auto step = [&] {
    own.set_current_seed(5);
    if (writes) {
      *count.mutable_data_ptr<float>() += 1;
      unused.mutable_data_ptr<float>()[1] += 1;
    }
    weight.add_(x * count * at::rand({3}) * at::rand({3}, own, at::kFloat));
    if (throws) throw std::runtime_error("stopped");
  };
  const auto capture = fulgur::make_step_capture();
  capture->set_state([&] {
    return std::vector<std::pair<std::string, Tensor>>{{"buffer 'count'", count}, {"buffer 'unused'", unused}};
  });
  const Tensor generator = generator_state();
  const auto is_undone = [&] {
    CHECK(at::equal(weight, at::zeros({3})));
    CHECK(at::equal(count, at::zeros({1})));
    CHECK(at::equal(unused, at::zeros({2})));
    CHECK(at::equal(generator, generator_state()));
  };
  CHECK_THROWS_AS(capture->record(step), fulgur::StepNotRecorded);
  CHECK(count.item<float>() == 1);
  capture->undo_step();
  is_undone();
  throws = true;
  CHECK_THROWS_WITH(capture->record(step), "stopped");
  is_undone();

  // A private generator that a step seeds is known from the recording before.
  throws = writes = false;
  own.set_current_seed(1);
  capture->record(step);
  own.set_current_seed(2);
  const Tensor own_before = own.get_state();
  CHECK_THROWS_WITH(capture->record(step), ContainsSubstring("other random numbers than the step"));
  capture->undo_step();
  is_undone();
  CHECK(at::equal(own_before, own.get_state()));
}

// An operation that fills scratch memory, and looks at a tensor that is no argument.
Tensor looked_at;
Tensor plus_one(const Tensor& x) {
  if (looked_at.defined()) looked_at.view({-1});
  Tensor ones = at::empty(x.sizes(), x.options());
  std::fill_n(ones.data_ptr<float>(), ones.numel(), 1.F);
  return x + ones;
}
TORCH_LIBRARY(fulgur_host_writes_test, library) { library.def("plus_one(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(fulgur_host_writes_test, CompositeExplicitAutograd, library) { library.impl("plus_one", &plus_one); }

TEST_CASE("an operation may fill scratch memory, but what it looks at is still compared") {
  const auto plus = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("fulgur_host_writes_test::plus_one", "")
                        .typed<Tensor(const Tensor&)>();
  Tensor out = at::zeros({8});
  const Tensor x = at::ones({8});
  CHECK(refusal_of([&] { out.copy_(plus.call(x)); }).empty());
  CHECK(refusal_of([&] { out.copy_(at::ones({70, 80}).t().contiguous().sum()); }).empty());
  for (const bool looks : {false, true}) {
    INFO(looks);
    CHECK_THAT(refusal_of([&] {
                 Tensor filled = at::empty({8});
                 looked_at = looks ? filled : Tensor();
                 const Tensor y = plus.call(x);
                 std::fill_n(filled.data_ptr<float>(), 8, 2.F);
                 out.copy_(y * filled);
               }),
               ContainsSubstring("host code: it writes the memory of a tensor of shape [8] itself"));
  }
  looked_at = Tensor();
}

}  // namespace host_writes_test
