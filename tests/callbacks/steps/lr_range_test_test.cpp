// The rule of the suggestion on synthetic curves, and the range test in a run.
#include "fulgur/callbacks/lr_range_test.h"

#include "trainer/boring.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>

#include "support/expect_error.h"

namespace lr_range_test_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A curve of `steps` points with the smoothed loss `loss(i)`, whose rate grows tenfold every ten steps.
template <class Loss>
LrCurve curve_of(int64_t steps, Loss loss) {
  LrCurve curve;
  for (int64_t i = 0; i < steps; ++i) {
    const double lr = range_test_lr(LrTestMode::exponential, 1e-6, 1, i, 61);
    curve.points.push_back({.lr = lr, .loss = loss(i), .smoothed = loss(i)});
  }
  return curve;
}

/// Falls most steeply at point `at`.
auto falling_at(double at) {
  return [at](int64_t i) { return 2 - std::tanh((static_cast<double>(i) - at) / 4); };
}

struct TwoGroups : BoringModule {
  double first_lr = 0.01, second_lr = 0.1, default_lr = 0.5;
  std::vector<std::pair<double, double>> rates;  // in each step
  bool returns_loss = true;
  OptimizerPlan configure_optimizers() override {
    const auto sgd = std::make_shared<SGD>(SGD::Options{.lr = default_lr});
    sgd->attach({{.name = "a", .params = first->parameters(), .names = {"a.weight", "a.bias"}, .lr = first_lr},
                 {.name = "b", .params = second->parameters(), .names = {"b.weight", "b.bias"}, .lr = second_lr}});
    // Without a test, this schedule would change the rates.
    return {sgd, SchedulerConfig{.scheduler = std::make_shared<ExponentialLR>(ExponentialLR::Options{.gamma = 0.5}),
                                 .interval = ScheduleInterval::step}};
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = BoringModule::training_step(batch, batch_idx);
    return returns_loss ? output : StepOutput{};
  }
  void on_before_optimizer_step(Optimizer& optimizer) override {
    rates.emplace_back(optimizer.groups()[0].lr, optimizer.groups()[1].lr);
  }
};

/// Options of a run that has no end of its own.
TrainerOptions endless(const TemporaryFolder& folder) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = -1;
  options.max_steps = 1000;
  options.barebones = true;
  return options;
}

FitReport test_lr(const std::shared_ptr<LrRangeTest>& range_test, const std::shared_ptr<TwoGroups>& module,
                  int64_t accumulate = 1) {
  const TemporaryFolder folder;
  TrainerOptions options = endless(folder);
  options.accumulate_grad_batches = accumulate;
  TrainerComponents components;
  components.seed = 1;
  components.add(range_test);
  return Trainer(options, components).fit(module, regression_data(40, 0));
}

}  // namespace

TEST_CASE("suggest_lr: the rate where the smoothed loss falls most steeply") {
  const LrSuggestion found = suggest_lr(curve_of(61, falling_at(30)));
  REQUIRE(found.lr);
  CHECK(found.index == 30);
  CHECK(*found.lr == Approx(1e-3));
  CHECK(found.reason.empty());
}

TEST_CASE("suggest_lr: a loss that falls evenly gives the first of the points that count") {
  const auto evenly = [](int64_t i) { return 100.0 - static_cast<double>(i); };
  CHECK(suggest_lr(curve_of(61, evenly)).index == 10);
  CHECK(suggest_lr(curve_of(61, evenly), 3).index == 3);
}

TEST_CASE("suggest_lr: noise that is smaller than the descent does not move it far") {
  const auto noisy = [](int64_t i) { return falling_at(30)(i) + 0.01 * std::sin(12.9898 * static_cast<double>(i)); };
  const LrSuggestion found = suggest_lr(curve_of(61, noisy));
  REQUIRE(found.index);
  CHECK(*found.index >= 27);
  CHECK(*found.index <= 33);
}

TEST_CASE("suggest_lr: steep parts among the skipped points do not count") {
  const auto steep_ends = [](int64_t i) { return i < 5 ? 1000.0 - 100 * static_cast<double>(i) : falling_at(30)(i); };
  CHECK(suggest_lr(curve_of(61, steep_ends)).index == 30);
  const auto drops_last = [](int64_t i) { return i == 60 ? -1000.0 : falling_at(30)(i); };
  CHECK(suggest_lr(curve_of(61, drops_last)).index == 30);
  CHECK(suggest_lr(curve_of(61, drops_last), 10, 0).index == 60);
}

TEST_CASE("suggest_lr: a curve ends where it is not finite") {
  const auto with_nan = [](int64_t i) { return i >= 40 ? kNan : falling_at(30)(i); };
  CHECK(suggest_lr(curve_of(61, with_nan)).index == 30);
  // What follows a NaN is not joined to what precedes it.
  const auto nan_between = [](int64_t i) { return i == 20 ? kNan : falling_at(30)(i); };
  const LrSuggestion found = suggest_lr(curve_of(61, nan_between));
  REQUIRE(found.index);
  CHECK(*found.index < 20);
}

TEST_CASE("suggest_lr: there is no suggestion for a curve that is too short, is NaN or does not fall") {
  const LrSuggestion few = suggest_lr(curve_of(13, falling_at(6)));
  CHECK_FALSE(few.lr);
  CHECK_THAT(few.reason, ContainsSubstring("13 finite steps") && ContainsSubstring("at least 14"));
  CHECK(suggest_lr(curve_of(14, falling_at(6))).lr);
  CHECK_FALSE(suggest_lr(LrCurve{}).lr);
  const LrSuggestion nan = suggest_lr(curve_of(61, [](int64_t) { return kNan; }));
  CHECK_FALSE(nan.lr);
  CHECK_THAT(nan.reason, ContainsSubstring("0 finite steps"));
  const LrSuggestion rises = suggest_lr(curve_of(61, [](int64_t i) { return static_cast<double>(i); }));
  CHECK_FALSE(rises.lr);
  CHECK_THAT(rises.reason, ContainsSubstring("does not fall"));
}

TEST_CASE("range_test_lr: the rates begin and end as requested, and grow by a constant factor or amount") {
  CHECK(range_test_lr(LrTestMode::exponential, 1e-4, 1, 0, 5) == 1e-4);
  CHECK(range_test_lr(LrTestMode::exponential, 1e-4, 1, 2, 5) == Approx(1e-2));
  CHECK(range_test_lr(LrTestMode::exponential, 1e-4, 1, 4, 5) == 1.0);
  CHECK(range_test_lr(LrTestMode::linear, 1, 5, 3, 5) == Approx(4.0));
  CHECK(range_test_lr(LrTestMode::linear, 1, 5, 9, 5) == 5.0);
  CHECK(range_test_lr(LrTestMode::linear, 1, 5, 0, 1) == 1.0);
}

TEST_CASE("LrRangeTest: each step has its rate, the groups keep their ratio, and schedules have no effect") {
  const auto range_test =
      std::make_shared<LrRangeTest>(LrRangeTest::Options{.min_lr = 1e-5, .max_lr = 1e-2, .steps = 31});
  const auto module = std::make_shared<TwoGroups>();
  test_lr(range_test, module);
  const LrCurve& curve = range_test->curve();
  REQUIRE(curve.points.size() == 31);
  CHECK(curve.end == LrTestEnd::all_steps);
  CHECK(range_test->initial_lr() == 0.01);
  REQUIRE(module->rates.size() >= 31);
  for (size_t i = 0; i < 31; ++i) {
    INFO(i);
    const double lr = range_test_lr(LrTestMode::exponential, 1e-5, 1e-2, static_cast<int64_t>(i), 31);
    CHECK(curve.points[i].lr == lr);
    CHECK(module->rates[i].first == lr);
    CHECK(module->rates[i].second == Approx(10 * lr));
  }
  // Without bias, the first smoothed loss is the loss.
  CHECK(curve.points[0].smoothed == Approx(curve.points[0].loss));
  const double second = (0.98 * 0.02 * curve.points[0].loss + 0.02 * curve.points[1].loss) / (1 - 0.98 * 0.98);
  CHECK(curve.points[1].smoothed == Approx(second));
}

TEST_CASE("LrRangeTest: batches of an accumulation window are one step with the mean of their losses") {
  LrRangeTest::Options options{.min_lr = 1e-12, .max_lr = 1e-11, .steps = 5};
  const auto each = std::make_shared<LrRangeTest>(LrRangeTest::Options{.min_lr = 1e-12, .max_lr = 1e-11, .steps = 10});
  const auto windows = std::make_shared<LrRangeTest>(options);
  at::manual_seed(3);
  const auto plain = std::make_shared<TwoGroups>();
  at::manual_seed(3);
  const auto accumulated = std::make_shared<TwoGroups>();
  test_lr(each, plain);
  test_lr(windows, accumulated, 2);
  REQUIRE(each->curve().points.size() == 10);
  REQUIRE(windows->curve().points.size() == 5);
  // The rates are too small to change the weights.
  for (size_t i = 0; i < 5; ++i)
    CHECK(windows->curve().points[i].loss ==
          Approx((each->curve().points[2 * i].loss + each->curve().points[2 * i + 1].loss) / 2));
}

TEST_CASE("LrRangeTest: the test ends when the loss diverges, or is no longer finite") {
  const auto diverges =
      std::make_shared<LrRangeTest>(LrRangeTest::Options{.min_lr = 1e-3, .max_lr = 1e6, .steps = 200});
  const FitReport report = test_lr(diverges, std::make_shared<TwoGroups>());
  CHECK(diverges->curve().end == LrTestEnd::diverged);
  CHECK(diverges->curve().points.size() < 200);
  CHECK(report.global_step == static_cast<int64_t>(diverges->curve().points.size()));
  const auto to_nan = std::make_shared<LrRangeTest>(
      LrRangeTest::Options{.min_lr = 1e-3, .max_lr = 1e30, .steps = 200, .early_stop_threshold = {}});
  test_lr(to_nan, std::make_shared<TwoGroups>());
  CHECK(to_nan->curve().end == LrTestEnd::not_finite);
  CHECK_FALSE(std::isfinite(to_nan->curve().points.back().loss));
}

TEST_CASE("LrRangeTest: options, optimizers and steps that cannot be tested") {
  const auto refused = [](const LrRangeTest::Options& options) {
    return message_of<ConfigError>([&] { LrRangeTest{options}; });
  };
  CHECK_THAT(refused({.min_lr = 1, .max_lr = 0.1}), ContainsSubstring("below max_lr; got 1.0 and 0.1"));
  CHECK_THAT(refused({.min_lr = 0, .max_lr = 0.1}), ContainsSubstring("must be positive"));
  CHECK_THAT(refused({.steps = 0}), ContainsSubstring("at least 1; got 0"));
  CHECK_THAT(refused({.early_stop_threshold = 0.5}), ContainsSubstring("above 1; got 0.5"));
  const auto module = std::make_shared<TwoGroups>();
  module->first_lr = module->default_lr = 0;
  const auto range_test = std::make_shared<LrRangeTest>(LrRangeTest::Options{});
  CHECK_THAT(message_of<ConfigError>([&] { test_lr(range_test, module); }), ContainsSubstring("above 0"));
  const auto silent = std::make_shared<TwoGroups>();
  silent->returns_loss = false;
  CHECK_THAT(message_of<Error>([&] { test_lr(range_test, silent); }), ContainsSubstring("training_step returned none"));
}

}  // namespace lr_range_test_test
