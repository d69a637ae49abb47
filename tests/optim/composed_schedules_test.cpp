#include "fulgur/optim/composed_schedules.h"

#include <ATen/ops/zeros.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/optim/adagrad.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/optim/reduce_lr_on_plateau.h"
#include "fulgur/optim/schedules.h"
#include "fulgur/optim/sgd.h"

namespace composed_schedules_test {

using namespace fulgur;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

const RunLength kRun{.epochs = 10, .steps = 1000, .steps_per_epoch = 100, .samples_per_step = 32};

template <class O>
void attach_one(O& optimizer) {
  optimizer.attach({{.name = "", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}}});
}

double rate_after(LrScheduler& schedule, int64_t steps) { return schedule.lr_at(steps, 1.0); }

template <class S>
void start(S& schedule, SGD& optimizer) {
  attach_one(optimizer);
  schedule.set_run_length(kRun, ScheduleInterval::step, 1);
  schedule.attach(optimizer);
}

std::shared_ptr<LrScheduler> line_to_zero() {
  LinearLR::Options options{.start_factor = 1, .end_factor = 0};
  options.total_iters = Auto<Length>();
  return std::make_shared<LinearLR>(options);
}

}  // namespace

TEST_CASE("auto in a part is the length of its part of the run") {
  SGD a(SGD::Options{.lr = 1}), b(SGD::Options{.lr = 1}), c(SGD::Options{.lr = 1});
  WarmupLR warm({.length = *Interval::parse("2ep"), .start_factor = 0}, line_to_zero());
  start(warm, a);
  CHECK(a.groups()[0].lr == 0);
  CHECK(rate_after(warm, 100) == Approx(0.5));
  CHECK(rate_after(warm, 200) == 1);
  CHECK(rate_after(warm, 600) == Approx(0.5));
  CHECK(rate_after(warm, 1000) == Approx(0).margin(1e-15));

  SequentialLR sequence({line_to_zero(), line_to_zero(), line_to_zero()}, {Length(100), *Interval::parse("0.5dur")});
  start(sequence, b);
  CHECK(rate_after(sequence, 50) == Approx(0.5));
  CHECK(rate_after(sequence, 100) == 1);
  CHECK(rate_after(sequence, 300) == Approx(0.5));
  CHECK(rate_after(sequence, 500) == 1);
  CHECK(rate_after(sequence, 750) == Approx(0.5));

  // TrainerComponents of parts.
  auto inner = std::make_shared<SequentialLR>(std::vector<std::shared_ptr<LrScheduler>>{line_to_zero(), line_to_zero()},
                                              std::vector<Length>{Length(300)});
  WarmupLR outer({.length = 200}, inner);
  start(outer, c);
  CHECK(rate_after(outer, 200 + 150) == Approx(0.5));
  CHECK(rate_after(outer, 500 + 250) == Approx(0.5));
}

TEST_CASE("without the length of the run a part with auto says so") {
  SGD optimizer(SGD::Options{.lr = 1});
  attach_one(optimizer);
  SequentialLR sequence({line_to_zero(), line_to_zero()}, {Length(100)});
  // At once, not at the step where the part begins.
  CHECK_THROWS_WITH(sequence.attach(optimizer), ContainsSubstring("LinearLR.total_iters"));
}

TEST_CASE("invalid compositions are refused") {
  SGD optimizer(SGD::Options{.lr = 1});
  CHECK_THROWS_WITH(SequentialLR({line_to_zero(), line_to_zero()}, {}),
                    ContainsSubstring("2 schedules need 1 milestones; got 0"));
  CHECK_THROWS_WITH(SequentialLR({}, {}), ContainsSubstring("at least one"));
  CHECK_THROWS_WITH(ChainedScheduler({nullptr}), ContainsSubstring("none may be null"));
  SequentialLR falling({line_to_zero(), line_to_zero(), line_to_zero()}, {Length(100), Length(100)});
  CHECK_THROWS_WITH(start(falling, optimizer), ContainsSubstring("milestone 1 is at step 100"));
  CHECK_THROWS_AS(WarmupLR({.length = 5, .start_factor = 0, .kind = WarmupLR::Kind::exponential}, nullptr),
                  ConfigError);
  WarmupStableDecayLR::Options options;
  options.warmup = 950;
  WarmupStableDecayLR long_warmup(options);
  CHECK_THROWS_WITH(start(long_warmup, optimizer),
                    ContainsSubstring("warmup (950 steps) and decay (100) are together longer than total_steps, 1000"));
}

TEST_CASE("a part that needs a metric gets it while it is active, and its state is kept") {
  SGD a(SGD::Options{.lr = 1}), b(SGD::Options{.lr = 1});
  const auto make = [] {
    return WarmupLR({.length = 3, .start_factor = 0.1},
                    std::make_shared<ReduceLROnPlateau>(ReduceLROnPlateau::Options{.factor = 0.5, .patience = 1}));
  };
  WarmupLR schedule = make(), other = make();
  CHECK(schedule.wants_metric());
  CHECK(schedule.metric_mode() == MonitorMode::min);
  start(schedule, a);
  for (int i = 0; i < 3; ++i) schedule.step(100.0);
  CHECK(a.groups()[0].lr == 1);
  schedule.step(1.0);
  schedule.step(1.0);
  schedule.step(std::nullopt);
  CHECK(a.groups()[0].lr == 1);
  start(other, b);
  other.load_state(schedule.state());
  schedule.step(1.0);
  other.step(1.0);
  CHECK(a.groups()[0].lr == 0.5);
  CHECK(b.groups()[0].lr == 0.5);

  SequentialLR sequence({line_to_zero(), line_to_zero()}, {Length(10)});
  CHECK_THROWS_AS(sequence.load_state(schedule.state()), CheckpointError);
}

TEST_CASE("momentum changes with the rate if the optimizer has one") {
  OneCycleLR::Options options;
  options.total_steps = Auto<Length>(Length(100));
  AdamW adamw(AdamW::Options{});
  attach_one(adamw);
  OneCycleLR schedule(options);
  schedule.attach(adamw);
  CHECK(adamw.momentum() == 0.95);
  for (int i = 0; i < 29; ++i) schedule.step();
  CHECK(*adamw.momentum() == Approx(0.85));

  Adagrad adagrad(Adagrad::Options{});
  attach_one(adagrad);
  OneCycleLR moves(options);
  CHECK_THROWS_WITH(moves.attach(adagrad), ContainsSubstring("Adagrad") && ContainsSubstring("cycle_momentum: false"));
  options.cycle_momentum = false;
  OneCycleLR leaves(options);
  leaves.attach(adagrad);
  SGD plain(SGD::Options{.lr = 1});
  attach_one(plain);
  CHECK_THROWS_AS(OneCycleLR(OneCycleLR::Options{.total_steps = Auto<Length>(Length(10))}).attach(plain), ConfigError);
}

TEST_CASE("a user's function is a schedule") {
  SGD optimizer(SGD::Options{.lr = 0.5});
  attach_one(optimizer);
  LambdaLR schedule([](int64_t step) { return 1.0 / static_cast<double>(1 + step); });
  schedule.attach(optimizer);
  schedule.step();
  CHECK(optimizer.groups()[0].lr == 0.25);
}

}  // namespace composed_schedules_test
