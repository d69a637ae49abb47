// The points of a sweep: a grid in its order, and random points that depend only on the file and their number.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "history/sweep_plan.h"

namespace sweep_points_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::history;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<std::string> texts_of(const SweepPlan& plan) {
  std::vector<std::string> texts;
  for (const SweepTrial& trial : plan.trials) texts.push_back(trial_text(plan, trial));
  return texts;
}

std::vector<double> numbers_of(const SweepPlan& plan, size_t axis = 0) {
  std::vector<double> numbers;
  for (const SweepTrial& trial : plan.trials) numbers.push_back(parse_whole<double>(trial.values[axis].text()).value());
  return numbers;
}

std::string random_sweep(int trials, const std::string& space, int seed = 1) {
  return cat("method: random\nmetric: m\ntrials: ", trials, "\nseed: ", seed, "\nspace:\n", space);
}

}  // namespace

TEST_CASE("sweep points: a grid has all combinations, and the last key varies fastest") {
  const SweepPlan plan =
      plan_of_text("method: grid\nmetric: m\nspace:\n  a.lr: [1, 2]\n  b.init_args.n: [x, [3, 4]]\n");
  CHECK(texts_of(plan) == std::vector<std::string>{"lr=1 n=x", "lr=1 n=[3, 4]", "lr=2 n=x", "lr=2 n=[3, 4]"});
  CHECK(plan.trials[1].overrides ==
        std::vector<std::pair<std::string, std::string>>{{"a.lr", "1"}, {"b.init_args.n", "[3, 4]"}});
}

TEST_CASE("sweep points: each point is repeated with every seed") {
  const SweepPlan plan = plan_of_text("method: grid\nmetric: m\nspace: {a: [1, 2]}\nseeds: [7, 9]");
  CHECK(texts_of(plan) == std::vector<std::string>{"a=1 seed=7", "a=1 seed=9", "a=2 seed=7", "a=2 seed=9"});
  CHECK(plan.points() == 2);
  CHECK(plan.trials[3].index == 3);
  CHECK(plan.trials[3].point == 1);
  CHECK(plan.trials[3].overrides.back() == std::pair<std::string, std::string>{"seed_everything", "9"});
}

TEST_CASE("sweep points: each point is validated on every fold, with every seed") {
  const SweepPlan plan = plan_of_text("method: grid\nmetric: m\nspace: {a: [1, 2]}\nseeds: [7, 9]\nfolds: 2");
  CHECK(texts_of(plan) == std::vector<std::string>{"a=1 seed=7 fold=1/2", "a=1 seed=7 fold=2/2", "a=1 seed=9 fold=1/2",
                                                   "a=1 seed=9 fold=2/2", "a=2 seed=7 fold=1/2", "a=2 seed=7 fold=2/2",
                                                   "a=2 seed=9 fold=1/2", "a=2 seed=9 fold=2/2"});
  CHECK(plan.runs_per_point() == 4);
  CHECK(plan.points() == 2);
  CHECK(plan.trials[5].overrides.back() == std::pair<std::string, std::string>{"data.fold", "2/2"});
  // Cross validation of one config.
  const SweepPlan one = plan_of_text("method: grid\nmetric: m\nspace: {}\nfolds: 3");
  CHECK(texts_of(one) == std::vector<std::string>{"fold=1/3", "fold=2/3", "fold=3/3"});
}

TEST_CASE("sweep points: a choice of a class comes before the options of the class") {
  const SweepPlan plan = plan_of_text(
      "method: grid\nmetric: m\nspace: {optimizer.lr: [0.1], optimizer.class_path: [SGD], model: [A], data.x: [1]}");
  std::vector<std::string> keys;
  for (const auto& [key, value] : plan.trials[0].overrides) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"optimizer.class_path", "model", "optimizer.lr", "data.x"});
}

TEST_CASE("sweep points: random points are the same each time, and a point does not depend on the number of points") {
  const std::string space =
      "  lr: {min: 1e-4, max: 0.1, scale: log}\n  n: {min: 1, max: 9, integer: true}\n  c: [a, b]\n";
  const auto few = texts_of(plan_of_text(random_sweep(5, space))),
             many = texts_of(plan_of_text(random_sweep(50, space)));
  CHECK(std::equal(few.begin(), few.end(), many.begin()));
  CHECK(texts_of(plan_of_text(random_sweep(50, space))) == many);
  CHECK(texts_of(plan_of_text(random_sweep(50, space, 2))) != many);
}

TEST_CASE("sweep points: another key does not change the draws of a key") {
  const std::string lr = "  lr: {min: 0, max: 1}\n";
  const auto alone = numbers_of(plan_of_text(random_sweep(20, lr)));
  CHECK(numbers_of(plan_of_text(random_sweep(20, "  c: [a, b]\n" + lr)), 1) == alone);
  CHECK(numbers_of(plan_of_text(random_sweep(20, "  rate: {min: 0, max: 1}\n"))) != alone);
}

TEST_CASE("sweep points: a linear range is uniform and stays inside its bounds") {
  const auto numbers = numbers_of(plan_of_text(random_sweep(4000, "  x: {min: -1, max: 3}\n")));
  CHECK(std::ranges::all_of(numbers, [](double x) { return x >= -1 && x <= 3; }));
  for (int quarter = 0; quarter < 4; ++quarter) {
    const auto count = std::ranges::count_if(numbers, [&](double x) { return x >= quarter - 1 && x < quarter; });
    // Four standard deviations of a binomial of 4000 and a quarter.
    CHECK(std::abs(static_cast<double>(count) - 1000) < 110);
  }
}

TEST_CASE("sweep points: the logarithm of a log range is uniform, and its bounds hold after rounding") {
  const auto numbers =
      numbers_of(plan_of_text(random_sweep(4000, "  x: {min: 1.23456789e-4, max: 1.23456789, scale: log}\n")));
  CHECK(std::ranges::all_of(numbers, [](double x) { return x >= 1.23456789e-4 && x <= 1.23456789; }));
  for (int decade = 0; decade < 4; ++decade) {
    const double low = 1.23456789e-4 * std::pow(10, decade);
    const auto count = std::ranges::count_if(numbers, [&](double x) { return x >= low && x < 10 * low; });
    CHECK(std::abs(static_cast<double>(count) - 1000) < 110);
  }
  // Six digits, so that a table shows the values that were used.
  for (const SweepTrial& trial : plan_of_text(random_sweep(20, "  x: {min: 0.1, max: 0.9}\n")).trials)
    CHECK(trial.values[0].text().size() <= 8);
}

TEST_CASE("sweep points: steps and whole numbers include both bounds") {
  const auto set_of = [](const std::string& range, int trials) {
    const auto numbers = numbers_of(plan_of_text(random_sweep(trials, "  x: " + range + "\n")));
    return std::set<double>(numbers.begin(), numbers.end());
  };
  CHECK(set_of("{min: 16, max: 64, integer: true, step: 16}", 4) == std::set<double>{16, 32, 48, 64});
  CHECK(set_of("{min: -1, max: 2, integer: true}", 4) == std::set<double>{-1, 0, 1, 2});
  CHECK(set_of("{min: 1, max: 4, integer: true, scale: log}", 4) == std::set<double>{1, 2, 3, 4});
  CHECK(set_of("{min: 0.1, max: 0.3, step: 0.1}", 3) == std::set<double>{0.1, 0.2, 0.3});
  // The last step that fits.
  CHECK(set_of("{min: 0, max: 1, step: 0.4}", 3) == std::set<double>{0, 0.4, 0.8});
}

TEST_CASE("sweep points: random points differ from each other, up to all points of the space") {
  const auto texts = texts_of(plan_of_text(random_sweep(12, "  a: [1, 2, 3]\n  b: {min: 1, max: 4, integer: true}\n")));
  CHECK(std::set<std::string>(texts.begin(), texts.end()).size() == 12);
}

TEST_CASE("sweep points: values as the command line takes them") {
  Problems problems;
  const auto text = [&](const std::string& yaml) { return override_text(parse_yaml(yaml, "v", problems)); };
  CHECK(text("0.1") == "0.1");
  CHECK(text("AdamW") == "AdamW");
  CHECK(text("'a b'") == "a b");
  CHECK(text("'1'") == "\"1\"");
  CHECK(text("'null'") == "\"null\"");
  CHECK(text("''") == "\"\"");
  CHECK(text("'[x'") == "\"[x\"");
  CHECK(override_text(ConfigNode::null()) == "null");
  CHECK(text("{class_path: SGD, init_args: {lr: 0.1, tags: [a, 'b, c']}}") ==
        R"({"class_path": SGD, "init_args": {"lr": 0.1, "tags": [a, "b, c"]}})");
  CHECK(problems.report() == Problems().report());
  for (const char* yaml : {"[[32], [64, 64]]", "{a: {b: ['1', 1, null, true]}}"}) {
    CAPTURE(yaml);
    const ConfigNode node = parse_yaml(yaml, "v", problems);
    CHECK(parse_yaml(override_text(node), "v", problems).same_as(node));
  }
}

TEST_CASE("sweep points: the rungs of halving") {
  const auto rungs = [](const std::string& halving, std::optional<int64_t> length) {
    return plan_of_text("method: grid\nmetric: m\nspace: {a: [1, 2]}\nhalving: " + halving, length).rungs;
  };
  CHECK(rungs("{factor: 3, min_epochs: 1}", 20) == std::vector<int64_t>{1, 3, 9});
  CHECK(rungs("{factor: 3, min_epochs: 1}", 9) == std::vector<int64_t>{1, 3});
  CHECK(rungs("{factor: 2, min_steps: 5}", 40) == std::vector<int64_t>{5, 10, 20});
  CHECK(rungs("{factor: 1000, min_steps: 5}", INT64_MAX / 2).back() < INT64_MAX / 2);
  CHECK_THROWS_WITH(rungs("{min_epochs: 4}", 4), ContainsSubstring("must be below trainer.max_epochs"));
  CHECK_THROWS_WITH(rungs("{min_epochs: 1}", std::nullopt), ContainsSubstring("Set trainer.max_epochs"));
  CHECK_THROWS_WITH(rungs("{min_steps: 1}", -1), ContainsSubstring("Set trainer.max_steps"));
}

}  // namespace sweep_points_test
