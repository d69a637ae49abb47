#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <map>
#include <set>

#include "baseline_problem.h"
#include "baselines.h"

namespace optimizer_baseline_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

std::string text_of(const nlohmann::json& entry) {
  return entry.at("class").get<std::string>() + " " + entry.at("options").dump();
}

std::map<int64_t, std::vector<double>> recorded(const nlohmann::json& entry) {
  std::map<int64_t, std::vector<double>> sorted;
  for (const auto& [step, weights] : entry.at("weights").items())
    sorted[std::stoll(step)] = weights.get<std::vector<double>>();
  return sorted;
}

// In float64 only the order of a sum differs from Python's, and the problem does not amplify it (the test of that is
// below). Muon's matrices go through bfloat16: twice what float32 in its place changes, which each iteration multiplies
// by 3.4.
double tolerance_of(const nlohmann::json& entry) {
  if (entry.at("class") != "Muon") return 1e-11;
  return entry.at("options").contains("ns_steps") ? 1e-3 : 2e-2;
}

double worst_difference(const std::vector<double>& weights, const std::vector<double>& expected) {
  REQUIRE(weights.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < weights.size(); ++i)
    worst = std::max(worst, std::abs(weights[i] - expected[i]) / std::max(1.0, std::abs(weights[i])));
  return worst;
}

}  // namespace

TEST_CASE("optimizers equal Python's over 1,000 steps") {
  const auto baseline = read_baseline("optimizers.json");
  std::set<std::string> classes;
  for (const auto& entry : baseline.at("cases")) {
    INFO(text_of(entry));
    classes.insert(entry.at("class").get<std::string>());
    BaselineProblem problem;
    const auto optimizer = make_from<Optimizer>(entry);
    optimizer->attach(problem.groups());
    const double tolerance = tolerance_of(entry);
    int64_t step = 0;
    for (const auto& [at, expected] : recorded(entry)) {
      while (step < at) problem.step(*optimizer, ++step);
      INFO("after " << at << " steps");
      CHECK(worst_difference(problem.weights(), expected) < tolerance);
    }
  }
  for (const std::string& name : component_registry("optimizer").names()) {
    INFO(name << " has no baseline");
    CHECK(classes.contains(name));
  }
}

// Gradients that differ as another processor's rounding would make them (2e-16, here 1e-14) end at the same weights:
// else recorded weights would be those of one processor.
TEST_CASE("the problem of the optimizers' baselines does not amplify rounding") {
  const auto baseline = read_baseline("optimizers.json");
  for (const auto& entry : baseline.at("cases")) {
    INFO(text_of(entry));
    BaselineProblem plain, disturbed;
    disturbed.disturbance = 1e-14;
    const auto a = make_from<Optimizer>(entry), b = make_from<Optimizer>(entry);
    a->attach(plain.groups());
    b->attach(disturbed.groups());
    for (int64_t step = 1; step <= recorded(entry).rbegin()->first; ++step) {
      plain.step(*a, step);
      disturbed.step(*b, step);
    }
    CHECK(worst_difference(disturbed.weights(), plain.weights()) < tolerance_of(entry) / 10);
  }
}

TEST_CASE("every optimizer resumes from its state to the last bit, whatever the dtype") {
  const auto baseline = read_baseline("optimizers.json");
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const auto& entry : baseline.at("cases")) {
      INFO(text_of(entry));
      BaselineProblem whole(dtype), first(dtype), second(dtype);
      const auto a = make_from<Optimizer>(entry), b = make_from<Optimizer>(entry), c = make_from<Optimizer>(entry);
      a->attach(whole.groups());
      b->attach(first.groups());
      for (int64_t step = 1; step <= 30; ++step) {
        whole.step(*a, step);
        if (step <= 13) first.step(*b, step);
      }
      second.take(first);
      c->attach(second.groups());
      c->load_state(b->state());
      for (int64_t step = 14; step <= 30; ++step) second.step(*c, step);
      CHECK(second.weights() == whole.weights());
    }
  }
}

TEST_CASE("a found infinity leaves parameters, state and counts of every optimizer as they were") {
  const auto baseline = read_baseline("optimizers.json");
  for (const auto& entry : baseline.at("cases")) {
    INFO(text_of(entry));
    BaselineProblem plain, skipped;
    const auto a = make_from<Optimizer>(entry), b = make_from<Optimizer>(entry);
    if (a->needs_closure()) continue;
    a->attach(plain.groups());
    b->attach(skipped.groups());
    const Tensor none = at::zeros({}), found = at::ones({});
    const auto broken_step = [&] {
      for (const Tensor& p : {skipped.w, skipped.v, skipped.b})
        p.mutable_grad() = at::full_like(p, std::numeric_limits<double>::infinity());
      b->step(found);
    };
    // Also before the first real step, when a gradient scaler is finding its scale.
    for (int64_t step = 1; step <= 20; ++step) {
      if (step % 5 == 1) broken_step();
      plain.set_gradients(step);
      a->step();
      skipped.set_gradients(step);
      b->step(none);
    }
    CHECK(plain.weights() == skipped.weights());
  }
}

}  // namespace optimizer_baseline_test
