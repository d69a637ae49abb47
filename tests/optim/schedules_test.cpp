#include <ATen/ops/ones.h>

#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/optim/schedules.h"

#include <ATen/ops/zeros.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>

#include "fulgur/core/text/errors.h"
#include "fulgur/optim/sgd.h"

namespace schedules_test {

using namespace fulgur;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<double> rates(LrScheduler& schedule, int64_t steps, double lr = 0.1) {
  SGD optimizer(SGD::Options{.lr = lr, .momentum = 0.9});
  optimizer.attach({ParamGroup{.name = "", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}}});
  schedule.attach(optimizer);
  std::vector<double> out{optimizer.groups()[0].lr};
  for (int64_t i = 0; i < steps; ++i) {
    schedule.step();
    out.push_back(optimizer.groups()[0].lr);
  }
  return out;
}

}  // namespace

// Values printed by torch.optim.lr_scheduler 2.11 for lr = 0.1.
TEST_CASE("schedules equal Python's") {
  StepLR step(StepLR::Options{.step_size = 2, .gamma = 0.5});
  const auto a = rates(step, 4);
  CHECK(a[0] == Approx(0.1));
  CHECK(a[1] == Approx(0.1));
  CHECK(a[2] == Approx(0.05));
  CHECK(a[4] == Approx(0.025));

  MultiStepLR multi(MultiStepLR::Options{.milestones = {1, 3}, .gamma = 0.1});
  const auto b = rates(multi, 3);
  CHECK(b[0] == Approx(0.1));
  CHECK(b[1] == Approx(0.01));
  CHECK(b[3] == Approx(0.001));

  ExponentialLR exponential(ExponentialLR::Options{.gamma = 0.9});
  CHECK(rates(exponential, 3)[3] == Approx(0.0729));

  CosineAnnealingLR::Options cosine_options;
  cosine_options.t_max = Auto<Length>(4);
  cosine_options.eta_min = 0.02;
  CosineAnnealingLR cosine(cosine_options);
  const auto c = rates(cosine, 4);
  CHECK(c[1] == Approx(0.08828427124746191));
  CHECK(c[2] == Approx(0.06));
  CHECK(c[4] == Approx(0.02));

  OneCycleLR::Options one;
  one.max_lr = 1.0;
  one.total_steps = Auto<Length>(10);
  OneCycleLR cycle(one);
  const auto d = rates(cycle, 9);
  CHECK(d[0] == Approx(0.04));
  CHECK(d[1] == Approx(0.52));
  CHECK(d[2] == Approx(1.0));
  CHECK(d[5] == Approx(0.6112620219362893));
  CHECK(d[9] == Approx(4e-06));
}

TEST_CASE("auto takes the length of the run and says so if it is unknown") {
  CosineAnnealingLR schedule(CosineAnnealingLR::Options{});
  CHECK_THROWS_WITH(rates(schedule, 1), ContainsSubstring("t_max] auto needs the length"));
  CosineAnnealingLR known(CosineAnnealingLR::Options{});
  known.set_run_length({.epochs = 2, .steps = {}, .steps_per_epoch = {}, .samples_per_step = {}},
                       ScheduleInterval::epoch, 1);
  CHECK(rates(known, 2)[2] == Approx(0.0).margin(1e-12));
  // A run of no step needs no length.
  for (const ScheduleInterval interval : {ScheduleInterval::step, ScheduleInterval::epoch}) {
    CosineAnnealingLR unused(CosineAnnealingLR::Options{});
    unused.set_run_length({.epochs = {}, .steps = 0, .steps_per_epoch = {}, .samples_per_step = {}, .max_steps = 0},
                          interval, 1);
    CHECK(rates(unused, 0).at(0) == Approx(0.1));
  }
}

TEST_CASE("a rate that is negative or not finite is refused with the schedule, the step and the value") {
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity(), -0.5}) {
    SGD optimizer(SGD::Options{.lr = 0.1});
    optimizer.attach({ParamGroup{.name = "head", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}}});
    LambdaLR schedule([wrong](int64_t step) { return step < 2 ? 0.5 : wrong; });
    schedule.attach(optimizer);
    schedule.step();
    CHECK_THROWS_WITH(schedule.step(), ContainsSubstring("LambdaLR gives ") &&
                                           ContainsSubstring(" for group 0 'head' of SGD, whose first rate is 0.1, "
                                                             "after 2 of its steps") &&
                                           ContainsSubstring("finite and at least 0"));
    CHECK(optimizer.groups()[0].lr == 0.05);
    LambdaLR at_once([wrong](int64_t) { return wrong; });
    CHECK_THROWS_AS(at_once.attach(optimizer), ConfigError);
  }
  struct Momentum : LrScheduler {
    double lr_at(int64_t, double initial_lr) const override { return initial_lr; }
    std::optional<double> momentum_at(int64_t) const override { return std::nan(""); }
  };
  SGD optimizer(SGD::Options{.lr = 0.1, .momentum = 0.9});
  optimizer.attach({ParamGroup{.name = "", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}}});
  CHECK_THROWS_WITH(Momentum().attach(optimizer), ContainsSubstring("Momentum gives .nan for SGD"));
}

TEST_CASE("a schedule resumes from its state") {
  SGD optimizer(SGD::Options{.lr = 0.1});
  optimizer.attach({ParamGroup{.name = "", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}}});
  ExponentialLR first(ExponentialLR::Options{.gamma = 0.5});
  first.attach(optimizer);
  for (int step = 0; step < 3; ++step) first.step();
  ExponentialLR second(ExponentialLR::Options{.gamma = 0.5});
  second.load_state(first.state());
  CHECK(rates(second, 0)[0] == Approx(0.0125));
}

TEST_CASE("lengths of a schedule may be intervals of the run") {
  const RunLength run{.epochs = 10, .steps = 1000, .steps_per_epoch = 100, .samples_per_step = 32};
  const auto decays_at = [&](const char* text, ScheduleInterval interval, int64_t frequency = 1) {
    StepLR schedule(StepLR::Options{.step_size = *Interval::parse(text), .gamma = 0.1});
    schedule.set_run_length(run, interval, frequency);
    SGD optimizer(SGD::Options{.lr = 1.0});
    optimizer.attach({{.name = "", .params = {at::ones({1}).requires_grad_()}, .names = {"w"}}});
    schedule.attach(optimizer);
    for (int64_t step = 1; step <= 1000; ++step) {
      schedule.step();
      if (optimizer.groups()[0].lr < 1.0) return step;
    }
    return int64_t{-1};
  };
  CHECK(decays_at("3ep", ScheduleInterval::step) == 300);
  CHECK(decays_at("3ep", ScheduleInterval::epoch) == 3);
  CHECK(decays_at("250st", ScheduleInterval::step) == 250);
  CHECK(decays_at("300st", ScheduleInterval::epoch) == 3);
  CHECK(decays_at("3200sa", ScheduleInterval::step) == 100);
  CHECK(decays_at("0.2dur", ScheduleInterval::step) == 200);
  CHECK(decays_at("0.2dur", ScheduleInterval::step, 2) == 100);
  CHECK_THROWS_WITH(decays_at("30min", ScheduleInterval::step), ContainsSubstring("a schedule is a function of steps"));
  StepLR unknown(StepLR::Options{.step_size = *Interval::parse("0.1dur"), .gamma = 0.1});
  CHECK_THROWS_WITH(rates(unknown, 1), ContainsSubstring("StepLR.step_size") && ContainsSubstring("length of the run"));
}

}  // namespace schedules_test
