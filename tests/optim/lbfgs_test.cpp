#include "fulgur/optim/lbfgs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"

namespace lbfgs_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

// Rosenbrock's valley: its lowest point is (1, 1), and plain descent hardly gets there.
struct Valley {
  Tensor x = at::tensor({-1.5}, at::kDouble).requires_grad_();
  Tensor y = at::tensor({2.0}, at::kDouble).requires_grad_();
  int64_t evaluations = 0;
  std::vector<ParamGroup> groups() { return {{.name = "", .params = {x, y}, .names = {"x", "y"}}}; }
  Closure closure() {
    return [this] {
      ++evaluations;
      x.mutable_grad().reset();
      y.mutable_grad().reset();
      const Tensor loss = ((1 - x).square() + 100 * (y - x.square()).square()).sum();
      loss.backward();
      return loss.detach();
    };
  }
};

}  // namespace

TEST_CASE("LBFGS with a line search comes down Rosenbrock's valley") {
  Valley valley;
  LBFGS optimizer(LBFGS::Options{.max_iter = 10, .line_search_fn = LBFGS::LineSearch::strong_wolfe});
  CHECK(optimizer.needs_closure());
  optimizer.attach(valley.groups());
  const double before = optimizer.step_closure(valley.closure()).item<double>();
  CHECK(before > 6);
  for (int i = 0; i < 5; ++i) optimizer.step_closure(valley.closure());
  CHECK(std::abs(valley.x.item<double>() - 1) < 1e-4);
  CHECK(std::abs(valley.y.item<double>() - 1) < 1e-4);
}

TEST_CASE("LBFGS resumes from its state to the last bit") {
  for (const bool line_search : {false, true}) {
    LBFGS::Options options{.lr = 0.01, .max_iter = 3, .history_size = 4};
    if (line_search) options.line_search_fn = LBFGS::LineSearch::strong_wolfe;
    Valley whole, first, second;
    LBFGS a(options), b(options), c(options);
    a.attach(whole.groups());
    b.attach(first.groups());
    CHECK(b.state().at("state").at("x").as_map().empty());
    for (int i = 0; i < 10; ++i) {
      a.step_closure(whole.closure());
      if (i < 5) b.step_closure(first.closure());
    }
    second.x.mutable_data_ptr<double>()[0] = first.x.item<double>();
    second.y.mutable_data_ptr<double>()[0] = first.y.item<double>();
    c.attach(second.groups());
    c.load_state(b.state());
    CHECK(c.state().at("state").at("x").at("old_dirs").as_list().size() == 4);
    for (int i = 5; i < 10; ++i) c.step_closure(second.closure());
    CHECK(second.x.equal(whole.x));
    CHECK(second.y.equal(whole.y));
    CHECK(whole.evaluations == a.state().at("state").at("x").at("func_evals").as_int());
  }
}

TEST_CASE("LBFGS refuses state that does not fit, and changes nothing") {
  Valley valley, other;
  LBFGS optimizer(LBFGS::Options{.lr = 0.01, .history_size = 8});
  optimizer.attach(valley.groups());
  optimizer.step_closure(valley.closure());
  const StateTree good = optimizer.state();
  LBFGS small(LBFGS::Options{.lr = 0.01, .history_size = 2});
  small.attach(other.groups());
  CHECK_THROWS_WITH(small.load_state(good), ContainsSubstring("keeps 8 updates, but history_size is 2"));
  CHECK(small.state().at("state").at("x").as_map().empty());

  LBFGS fresh(LBFGS::Options{.lr = 0.01, .history_size = 8});
  fresh.attach({{.name = "", .params = {other.y, other.x}, .names = {"y", "x"}}});
  CHECK_THROWS_WITH(fresh.load_state(good),
                    ContainsSubstring("parameter 0 is 'x' in the checkpoint and 'y' in the run"));
  StateTree wrong = good;
  wrong["state"]["x"]["d"] = at::zeros({5});
  LBFGS again(LBFGS::Options{.lr = 0.01, .history_size = 8});
  again.attach(other.groups());
  CHECK_THROWS_WITH(again.load_state(wrong), ContainsSubstring("size of d: checkpoint 5, all parameters 2"));
}

TEST_CASE("LBFGS takes one group of one dtype, the rate of a schedule, and no step without a closure") {
  Valley valley;
  LBFGS optimizer(LBFGS::Options{});
  CHECK_THROWS_WITH(optimizer.attach({{.name = "", .params = {valley.x}, .names = {"x"}},
                                      {.name = "", .params = {valley.y}, .names = {"y"}}}),
                    ContainsSubstring("one group; got 2"));
  const Tensor single = at::ones({1}).requires_grad_();
  CHECK_THROWS_WITH(optimizer.attach({{.name = "", .params = {valley.x, single}, .names = {"x", "s"}}}),
                    ContainsSubstring("'s' is Float"));
  const Tensor last = at::ones({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  CHECK_THROWS_WITH(optimizer.attach({{.name = "", .params = {single, last}, .names = {"s", "c"}}}),
                    ContainsSubstring("'c' of shape [2, 3, 4, 4]") && ContainsSubstring("channels_last"));
  optimizer.attach(valley.groups());
  CHECK_THROWS_AS(optimizer.step(), Error);
  optimizer.groups()[0].lr = 0;
  const Tensor before = valley.x.detach().clone();
  optimizer.step_closure(valley.closure());
  CHECK(valley.x.equal(before));
}

}  // namespace lbfgs_test
