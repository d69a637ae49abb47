#include "fulgur/optim/torch_optimizer.h"

#include <ATen/ops/ones.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "regression.h"

namespace torch_optimizer_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A custom class: it may keep more than its base.
struct MyAdam : torch::optim::Adam {
  using torch::optim::Adam::Adam;
};

template <class T, class TorchOptions>
void check_class(const TorchOptions& options) {
  Regression plain, whole, first, second;
  // Adagrad must know the second group too.
  const auto groups = [](Regression& p) {
    return std::vector<ParamGroup>{{.name = "w", .params = {p.w}, .names = {"w"}, .lr = 0.02},
                                   {.name = "b", .params = {p.b}, .names = {"b"}, .weight_decay = 0.3}};
  };
  T twin(std::vector<Tensor>{plain.w}, options);
  twin.param_groups()[0].options().set_lr(0.02);
  T twin_b(std::vector<Tensor>{plain.b}, TorchOptions(options).weight_decay(0.3));
  auto a = torch_optimizer<T>(options), b = torch_optimizer<T>(options), c = torch_optimizer<T>(options);
  a->attach(groups(whole));
  b->attach(groups(first));
  CHECK(a->groups()[0].lr == 0.02);
  CHECK(a->groups()[1].lr == 0.01);
  CHECK(a->groups()[1].initial_lr == 0.01);
  CHECK(a->weight_decay(a->groups()[0]) == options.weight_decay());
  CHECK(a->weight_decay(a->groups()[1]) == 0.3);
  for (int64_t step = 0; step < 20; ++step) {
    for (Regression* p : {&plain, &whole, &first}) p->set_gradients(step);
    twin.step();
    twin_b.step();
    a->step();
    if (step < 10) b->step();
  }
  CHECK(whole.w.equal(plain.w));
  CHECK(whole.b.equal(plain.b));
  second.take(first);
  c->attach(groups(second));
  c->load_state(b->state());
  for (int64_t step = 10; step < 20; ++step) {
    second.set_gradients(step);
    c->step();
  }
  CHECK(second.w.equal(whole.w));
  CHECK(second.b.equal(whole.b));
}

}  // namespace

TEST_CASE("torch::optim's classes step as they do alone, group by group, and resume from their state to the last bit") {
  check_class<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  check_class<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
  check_class<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
  check_class<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9));
  check_class<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
  check_class<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
  check_class<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01).lr_decay(0.01).initial_accumulator_value(0.5));
}

TEST_CASE("a class whose state is unknown is refused when it would be saved") {
  Regression problem;
  auto optimizer = torch_optimizer<MyAdam>(torch::optim::AdamOptions(0.01));
  CHECK_THROWS_WITH(optimizer->wrapped(), ContainsSubstring("call attach()"));
  optimizer->attach(problem.groups());
  problem.set_gradients(0);
  optimizer->step();
  CHECK_THROWS_AS(optimizer->state(), CheckpointError);
  CHECK_THROWS_WITH(optimizer->state(), ContainsSubstring("MyAdam cannot be saved"));
}

TEST_CASE("state of a torch::optim class that does not fit is refused") {
  Regression problem, other;
  auto plain = torch_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
  plain->attach(problem.groups());
  problem.set_gradients(0);
  plain->step();
  auto amsgrad = torch_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  amsgrad->attach(other.groups());
  CHECK_THROWS_WITH(amsgrad->load_state(plain->state()), ContainsSubstring("max_exp_avg_sq"));
  auto sgd = torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
  sgd->attach(other.groups());
  CHECK_THROWS_WITH(sgd->load_state(plain->state()),
                    ContainsSubstring("torch::optim::Adam") && ContainsSubstring("torch::optim::SGD"));
  CHECK(amsgrad->state().at("state").at("w").as_map().empty());
}

TEST_CASE("rates, momentum and a found infinity reach a torch::optim class") {
  Regression problem;
  auto optimizer = torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9));
  optimizer->attach(problem.groups());
  CHECK(optimizer->momentum() == 0.9);
  optimizer->set_momentum(0.5);
  CHECK(static_cast<torch::optim::SGDOptions&>(optimizer->wrapped().param_groups()[0].options()).momentum() == 0.5);
  const Tensor before = problem.w.detach().clone();
  problem.set_gradients(0);
  optimizer->step(at::ones({}));
  CHECK(problem.w.equal(before));
  optimizer->groups()[0].lr = 0;
  optimizer->step();
  CHECK(problem.w.equal(before));
  auto adagrad = torch_optimizer<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01));
  adagrad->attach(problem.groups());
  CHECK_FALSE(adagrad->momentum());
  CHECK_THROWS_AS(adagrad->set_momentum(0.5), ConfigError);
}

TEST_CASE("a closure and a factory that leaves parameters out are refused") {
  Regression problem;
  auto lbfgs = torch_optimizer<torch::optim::LBFGS>(torch::optim::LBFGSOptions(1));
  CHECK_THROWS_WITH(lbfgs->attach(problem.groups()), ContainsSubstring("fulgur::LBFGS"));
  TorchOptimizer partial([](std::vector<Tensor> parameters) {
    parameters.pop_back();
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  });
  CHECK_THROWS_AS(partial.attach(problem.groups()), ConfigError);
}

}  // namespace torch_optimizer_test
