// Copies of parameters on other devices are updated if a parameter's version has changed.
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/optim/torch_optimizer.h"
#include "regression.h"

namespace parameter_versions_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

/// Whether each write to a parameter raises its version, over three steps.
void check_versions(Optimizer& optimizer) {
  Regression problem;
  optimizer.attach(problem.groups());
  for (int64_t step = 0; step < 3; ++step) {
    uint32_t version = problem.w._version();
    Tensor before = problem.w.detach().clone();
    const auto look = [&] {
      if (!problem.w.equal(before)) CHECK(problem.w._version() > version);
      version = problem.w._version();
      before = problem.w.detach().clone();
    };
    const auto closure = [&] {
      look();
      problem.set_gradients(step);
      return problem.w.detach().square().sum();
    };
    const Tensor at_first = before;
    if (optimizer.needs_closure()) {
      optimizer.step_closure(closure);
    } else {
      problem.set_gradients(step);
      optimizer.step();
    }
    CHECK_FALSE(problem.w.equal(at_first));
    look();
  }
}

}  // namespace

TEST_CASE("each optimizer's step counts up the versions of the parameters that it writes") {
  const auto names = Registry<Optimizer>::instance().names();
  CHECK(names.size() >= 8);
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto& info = Registry<Optimizer>::instance().get(name);
    const auto optimizer = Registry<Optimizer>::create(name, *info.make_options());
    check_versions(*optimizer);
  }
}

TEST_CASE("a step of torch::optim, too, though it writes past the count") {
  check_versions(*torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  check_versions(*torch_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(0.1)));
}

}  // namespace parameter_versions_test
