#include "fulgur/capture/step_capture.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>

#include "capture/twin.h"
#include "fulgur/core/text/errors.h"

namespace step_capture_test {

using namespace capture_test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a recorded step is not executed; replays execute it, and later recordings are compared") {
  Tensor weight = at::zeros({3}), noise;
  const Tensor x = at::ones({3});
  const auto capture = fulgur::make_step_capture();
  REQUIRE(capture->compares_recordings());
  int recorded = 0;
  const auto step = [&] {
    ++recorded;
    noise = at::rand({3});
    weight.add_(x).mul_(2);
  };
  at::manual_seed(1);
  const Tensor generator = generator_state();
  capture->record(step);
  CHECK(recorded == 1);
  CHECK(at::equal(weight, at::zeros({3})));
  CHECK(at::equal(generator, generator_state()));
  capture->replay();
  CHECK(at::equal(weight, at::full({3}, 2.F)));
  capture->record(step);
  CHECK(at::equal(weight, at::full({3}, 2.F)));
  capture->replay();
  CHECK(at::equal(weight, at::full({3}, 6.F)));
  CHECK(recorded == 2);

  const auto other = [&] { weight.add_(x).mul_(3); };
  CHECK_THROWS_AS(capture->record(other), fulgur::StepNotRecorded);
  CHECK(at::equal(weight, at::full({3}, 21.F)));
  capture->undo_step();
  CHECK(at::equal(weight, at::full({3}, 6.F)));
  CHECK_THROWS_WITH(capture->record(other), ContainsSubstring("aten::"));
  capture->undo_step();
  capture->replay();  // the recording of before
  CHECK(at::equal(weight, at::full({3}, 14.F)));
  capture->forget();
  capture->record(other);
  capture->replay();
  CHECK(at::equal(weight, at::full({3}, 45.F)));
}

TEST_CASE("what is refused has been executed and can be undone; what throws leaves everything as it was") {
  Tensor weight = at::zeros({3});
  const auto capture = fulgur::make_step_capture();
  capture->set_place([] { return "backward"; });
  const auto another = capture->another();
  CHECK_THROWS_WITH(another->record([&] { weight.add_(weight.sum().item<double>() + 1); }),
                    ContainsSubstring("aten::_local_scalar_dense in backward: it reads"));
  CHECK(at::equal(weight, at::ones({3})));
  another->undo_step();
  CHECK(at::equal(weight, at::zeros({3})));
  CHECK_THROWS_AS(capture->record([&] {
    weight.add_(1);
    throw std::runtime_error("stopped");
  }),
                  std::runtime_error);
  CHECK(at::equal(weight, at::zeros({3})));
  CHECK_THROWS_WITH(capture->record([&] {
    weight.add_(1);
    *weight.mutable_data_ptr<float>() = 7;
  }),
                    ContainsSubstring("host code: it writes the memory of a tensor itself"));
  CHECK(weight[0].item<float>() == 7);
  CHECK(weight[1].item<float>() == 1);
  capture->undo_step();
  CHECK(at::equal(weight, at::zeros({3})));
  capture->record([&] { weight.add_(1); });
  another->record([&] { weight.add_(10); });
  capture->replay();
  another->replay();
  CHECK(at::equal(weight, at::full({3}, 11.F)));
}

TEST_CASE("steps without gradients are recorded, in inference mode too") {
  const bool inference = GENERATE(true, false);
  const Tensor weight = at::randn({4, 3}).set_requires_grad(true), state = at::zeros({});
  const c10::InferenceMode mode(inference);
  const at::NoGradGuard no_grad;
  const auto capture = fulgur::make_step_capture();
  const Tensor x = at::randn({2, 4});
  Tensor out;
  const auto step = [&] {
    out = at::relu(x.matmul(weight));
    state.add_(out.sum());
  };
  step();
  const Tensor once = state.clone();
  capture->record(step);
  capture->replay();
  CHECK(state.equal(once + once));
  x.copy_(at::randn({2, 4}));
  const Tensor expected = at::relu(x.matmul(weight)), sum = state + expected.sum();
  capture->record(step);
  capture->replay();
  CHECK(out.equal(expected));
  CHECK(state.equal(sum));
  x.copy_(at::randn({2, 4}));
  capture->replay();
  CHECK(out.equal(at::relu(x.matmul(weight))));
}

}  // namespace step_capture_test
