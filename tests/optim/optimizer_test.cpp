#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>

#include "fulgur/core/contracts/optimizer_handle.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/lion.h"
#include "fulgur/optim/sgd.h"
#include "regression.h"

namespace optimizer_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class Torch, class Mine>
void check_twins(Torch make_torch, Mine make_mine) {
  Regression mine, theirs;
  auto optimizer = make_mine();
  optimizer->attach(mine.groups());
  auto torch_optimizer = make_torch(std::vector<Tensor>{theirs.w, theirs.b});
  for (int64_t step = 0; step < 300; ++step) {
    mine.set_gradients(step);
    theirs.set_gradients(step);
    optimizer->step();
    torch_optimizer.step();
  }
  CHECK((mine.w - theirs.w).abs().max().item<double>() < 2e-6);
  CHECK((mine.b - theirs.b).abs().max().item<double>() < 2e-6);
  CHECK((mine.w - Regression().w).abs().max().item<double>() > 1e-2);
}

}  // namespace

TEST_CASE("SGD, Adam and AdamW follow LibTorch's") {
  check_twins(
      [](auto p) {
        return torch::optim::SGD(p, torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true).weight_decay(0.01));
      },
      [] {
        return std::make_shared<SGD>(SGD::Options{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
      });
  check_twins([](auto p) { return torch::optim::SGD(p, torch::optim::SGDOptions(0.01)); },
              [] { return std::make_shared<SGD>(SGD::Options{.lr = 0.01}); });
  check_twins([](auto p) { return torch::optim::Adam(p, torch::optim::AdamOptions(0.01).weight_decay(0.02)); },
              [] {
                Adam::Options o;
                o.lr = 0.01;
                o.weight_decay = 0.02;
                return std::make_shared<Adam>(o);
              });
  check_twins(
      [](auto p) { return torch::optim::AdamW(p, torch::optim::AdamWOptions(0.01).weight_decay(0.1).amsgrad(true)); },
      [] {
        AdamW::Options o;
        o.lr = 0.01;
        o.weight_decay = 0.1;
        o.amsgrad = true;
        return std::make_shared<AdamW>(o);
      });
}

TEST_CASE("an optimizer of groups and options is one that was attached") {
  Regression one, two;
  two.take(one);
  AdamW attached(AdamW::Options{.lr = 0.01, .betas = {0.8, 0.99}});
  attached.attach(one.groups());
  AdamW made(two.groups(), {.lr = 0.01, .betas = {0.8, 0.99}});
  CHECK(made.weight_decay(made.groups()[0]) == 0.01);
  for (int64_t step = 0; step < 3; ++step) {
    one.set_gradients(step);
    two.set_gradients(step);
    attached.step();
    made.step();
  }
  for (size_t i = 0; i < attached.groups()[0].params.size(); ++i)
    CHECK(made.groups()[0].params[i].equal(attached.groups()[0].params[i]));
  CHECK(Muon(one.groups(), {}).attached());
  CHECK(LBFGS(one.groups(), {}).attached());
}

TEST_CASE("the state of an optimizer goes on exactly") {
  Regression whole, first, second;
  AdamW::Options options;
  options.lr = 0.01;
  AdamW a(options), b(options), c(options);
  a.attach(whole.groups());
  b.attach(first.groups());
  for (int64_t step = 0; step < 20; ++step) {
    whole.set_gradients(step);
    a.step();
    if (step < 10) {
      first.set_gradients(step);
      b.step();
    }
  }
  second.take(first);
  c.attach(second.groups());
  c.load_state(b.state());
  for (int64_t step = 10; step < 20; ++step) {
    second.set_gradients(step);
    c.step();
  }
  CHECK(second.w.equal(whole.w));
  CHECK(second.b.equal(whole.b));
}

TEST_CASE("found_inf leaves parameters, state and step count as they were") {
  Regression problem;
  Adam optimizer(Adam::Options{});
  optimizer.attach(problem.groups());
  problem.set_gradients(0);
  optimizer.step();
  const Tensor before = problem.w.detach().clone();
  const Tensor average = optimizer.state().at("state").at("w").at("exp_avg").tensor().clone();
  problem.set_gradients(1);
  optimizer.step(at::ones({}));
  CHECK(problem.w.equal(before));
  CHECK(optimizer.state().at("state").at("w").at("exp_avg").tensor().equal(average));
  CHECK(optimizer.state().at("state").at("w").at("step").tensor().item<double>() == 1);
}

TEST_CASE("F14 optimizer state that does not fit is refused with every reason, and nothing changes") {
  Regression problem;
  Adam adam(Adam::Options{});
  adam.attach(problem.groups());
  problem.set_gradients(0);
  adam.step();
  StateTree state = adam.state();

  SGD sgd(SGD::Options{.lr = 0.1, .momentum = 0.9});
  Regression other;
  sgd.attach(other.groups());
  CHECK_THROWS_WITH(sgd.load_state(state), ContainsSubstring("Adam") && ContainsSubstring("SGD"));

  state["state"]["w"]["exp_avg"] = at::zeros({2, 2});
  state["state"]["extra"] = state.at("state").at("b");
  state["state"].as_map().erase("b");
  Adam fresh(Adam::Options{});
  fresh.attach(other.groups());
  CHECK_THROWS_WITH(fresh.load_state(state), ContainsSubstring("[2, 2]") && ContainsSubstring("missing: b") &&
                                                 ContainsSubstring("unexpected: extra"));
  CHECK(fresh.state().at("state").at("w").as_map().empty());
}

TEST_CASE("F14 a parameter in another group than in the checkpoint is refused, and nothing changes") {
  const auto make = [](const Regression& problem, bool swapped) {
    auto optimizer = std::make_unique<Adam>(Adam::Options{});
    const Tensor &first = swapped ? problem.b : problem.w, &second = swapped ? problem.w : problem.b;
    optimizer->attach({ParamGroup{.name = "backbone", .params = {first}, .names = {swapped ? "b" : "w"}, .lr = 0.5},
                       ParamGroup{.name = "", .params = {second}, .names = {swapped ? "w" : "b"}, .lr = 0.25}});
    return optimizer;
  };
  Regression problem, other;
  const auto saved = make(problem, false);
  problem.set_gradients(0);
  saved->step();
  saved->groups()[0].lr = 0.125;
  const StateTree state = saved->state();

  const auto swapped = make(other, true);
  CHECK_THROWS_AS(swapped->load_state(state), CheckpointError);
  CHECK_THROWS_WITH(swapped->load_state(state),
                    ContainsSubstring("w is in group 0 'backbone' of the checkpoint and in group 1 of the run") &&
                        ContainsSubstring("b is in group 1 of the checkpoint and in group 0 'backbone' of the run"));
  CHECK(swapped->groups()[0].lr == 0.5);
  CHECK(swapped->state().at("state").at("w").as_map().empty());

  // All to one side: as many groups, one of them empty.
  Adam gathered(Adam::Options{});
  gathered.attach({ParamGroup{.name = "all", .params = {other.w, other.b}, .names = {"w", "b"}},
                   ParamGroup{.name = "rest", .params = {}, .names = {}}});
  CHECK_THROWS_WITH(gathered.load_state(state),
                    ContainsSubstring("b is in group 1 of the checkpoint and in group 0 'all' of the run") &&
                        !ContainsSubstring("w is in"));

  // A group's name is only a label.
  Adam renamed(Adam::Options{});
  renamed.attach({ParamGroup{.name = "body", .params = {other.w}, .names = {"w"}},
                  ParamGroup{.name = "head", .params = {other.b}, .names = {"b"}}});
  renamed.load_state(state);
  CHECK(renamed.groups()[0].lr == 0.125);
  CHECK(renamed.groups()[1].lr == 0.25);
}

TEST_CASE("F14 rates that cannot be read change nothing") {
  Regression problem;
  Adam adam(Adam::Options{});
  adam.attach({ParamGroup{.name = "a", .params = {problem.w}, .names = {"w"}, .lr = 0.5},
               ParamGroup{.name = "b", .params = {problem.b}, .names = {"b"}, .lr = 0.5}});
  StateTree state = adam.state();
  state["groups"].as_list()[0]["lr"] = 0.25;
  state["groups"].as_list()[1]["lr"] = "fast";
  CHECK_THROWS_AS(adam.load_state(state), CheckpointError);
  CHECK(adam.groups()[0].lr == 0.5);
}

TEST_CASE("parameters without a gradient are left alone, and one that gets a gradient later has its own count") {
  Regression problem;
  Adam optimizer(Adam::Options{});
  optimizer.attach(problem.groups());
  problem.set_gradients(0);
  problem.b.mutable_grad().reset();
  const Tensor before = problem.b.detach().clone();
  optimizer.step();
  CHECK(problem.b.equal(before));
  problem.set_gradients(1);
  optimizer.step();
  CHECK_FALSE(problem.b.equal(before));
  CHECK(optimizer.state().at("state").at("w").at("step").tensor().item<double>() == 2);
  CHECK(optimizer.state().at("state").at("b").at("step").tensor().item<double>() == 1);
}

TEST_CASE("attach refuses a parameter twice and an empty list, and zero_grad sets gradients to none") {
  Regression problem;
  SGD optimizer(SGD::Options{});
  CHECK_THROWS_WITH(
      optimizer.attach({ParamGroup{.name = "", .params = {problem.w, problem.w}, .names = {"w", "tied"}}}),
      ContainsSubstring("'tied' and 'w'"));
  CHECK_THROWS_WITH(optimizer.attach({}), ContainsSubstring("no parameter"));
  optimizer.attach(problem.groups());
  problem.set_gradients(0);
  CHECK(optimizer.gradients().size() == 2);
  optimizer.zero_grad();
  CHECK_FALSE(problem.w.grad().defined());
  CHECK(optimizer.gradients().empty());
}

TEST_CASE("a learning rate that is negative or not finite is refused with the optimizer, the group and the value") {
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity(), -0.5}) {
    const auto group = [](double lr) {
      return ParamGroup{.name = "head", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}, .lr = lr};
    };
    AdamW by_options(AdamW::Options{.lr = wrong});
    CHECK_THROWS_WITH(by_options.attach({group(0)}),
                      ContainsSubstring("finite and at least 0; AdamW has ") && ContainsSubstring("group 0 'head'"));
    CHECK_FALSE(by_options.attached());
    const auto by_group = std::make_shared<AdamW>(AdamW::Options{.lr = 0.1});
    CHECK_THROWS_AS(by_group->attach({group(wrong)}), ConfigError);
    by_group->attach({group(0)});
    OptimizerHandle handle(by_group, [](OptimizerHandle&, const Closure&) {});
    handle.step();
    handle.groups()[0].lr = wrong;
    CHECK_THROWS_WITH(handle.step(), ContainsSubstring("after 1 of its steps"));
    CHECK(handle.steps() == 1);
  }
}

TEST_CASE("weight decay of a group wins over the optimizer's") {
  Regression problem;
  SGD optimizer(SGD::Options{.lr = 0.1, .weight_decay = 0.5});
  auto groups = problem.groups();
  groups[0].weight_decay = 0.0;
  optimizer.attach(groups);
  problem.w.mutable_grad() = at::zeros({7, 3});
  problem.b.mutable_grad() = at::zeros({3});
  const Tensor before = problem.w.detach().clone();
  optimizer.step();
  CHECK(problem.w.equal(before));
  CHECK(optimizer.weight_decay(optimizer.groups()[0]) == 0.0);
  optimizer.attach(problem.groups());
  CHECK(optimizer.weight_decay(optimizer.groups()[0]) == 0.5);
}

TEST_CASE("a gradient in another memory layout than its parameter's is read as what it is") {
  Regression plain, strided;
  AdamW a(AdamW::Options{}), b(AdamW::Options{});
  a.attach(plain.groups());
  b.attach(strided.groups());
  plain.set_gradients(0);
  strided.set_gradients(0);
  strided.w.mutable_grad() = plain.w.grad().t().contiguous().t();
  a.step();
  b.step();
  CHECK(strided.w.equal(plain.w));
}

TEST_CASE("a group may be empty") {
  Regression problem;
  AdamW optimizer(AdamW::Options{});
  auto groups = problem.groups();
  groups.insert(groups.begin(), ParamGroup{.name = "none", .params = {}, .names = {}});
  optimizer.attach(groups);
  problem.set_gradients(0);
  const Tensor before = problem.w.detach().clone();
  optimizer.step();
  CHECK_FALSE(problem.w.equal(before));
}

TEST_CASE("one beta is refused with the class that was asked for") {
  CHECK_THROWS_WITH(AdamW(AdamW::Options{.betas = {0.9}}),
                    ContainsSubstring("[optim.AdamW] betas must be two numbers") && ContainsSubstring("got 1"));
  CHECK_THROWS_WITH(Adam(Adam::Options{.betas = {0.9}}), ContainsSubstring("[optim.Adam] betas must be two numbers"));
}

TEST_CASE("a gradient of another dtype is named") {
  Regression problem;
  Lion optimizer(Lion::Options{});
  optimizer.attach(problem.groups());
  problem.set_gradients(0);
  problem.w.mutable_grad() = problem.w.grad().to(at::kDouble);
  CHECK_THROWS_WITH(optimizer.step(), ContainsSubstring("gradient of 'w' is Double and the parameter is Float"));
}

}  // namespace optimizer_test
