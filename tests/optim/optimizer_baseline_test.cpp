#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
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

}  // namespace

// In float64 only the order of a sum differs from Python's: 1e-9 over 1,000 steps. Muon's matrices go through bfloat16,
// whose products processors round differently: 2^-8 of a step's direction at a time.
TEST_CASE("optimizers equal Python's over 1,000 steps") {
  const auto baseline = read_baseline("optimizers.json");
  std::set<std::string> classes;
  for (const auto& entry : baseline.at("cases")) {
    INFO(text_of(entry));
    classes.insert(entry.at("class").get<std::string>());
    BaselineProblem problem;
    const auto optimizer = make_from<Optimizer>(entry);
    optimizer->attach(problem.groups());
    const double tolerance = optimizer->name() == "Muon" ? 2e-2 : 1e-9;
    int64_t step = 0;
    for (const auto& [at, expected] : std::map<int64_t, nlohmann::json>([&] {
           std::map<int64_t, nlohmann::json> sorted;
           for (const auto& [key, weights] : entry.at("weights").items()) sorted[std::stoll(key)] = weights;
           return sorted;
         }())) {
      while (step < at) problem.step(*optimizer, ++step);
      const auto weights = problem.weights();
      REQUIRE(weights.size() == expected.size());
      double worst = 0;
      for (size_t i = 0; i < weights.size(); ++i)
        worst = std::max(worst, std::abs(weights[i] - expected[i].get<double>()) / std::max(1.0, std::abs(weights[i])));
      INFO("after " << at << " steps");
      CHECK(worst < tolerance);
    }
  }
  for (const std::string& name : component_registry("optimizer").names()) {
    INFO(name << " has no baseline");
    CHECK(classes.contains(name));
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
