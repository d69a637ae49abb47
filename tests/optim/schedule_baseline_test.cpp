#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <set>

#include "baselines.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/optim/sgd.h"

namespace schedule_baseline_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

// The metric of make_baselines.py.
double metric(int64_t step) {
  return static_cast<double>(step * 7919 % 101) / 101 + 50.0 / static_cast<double>(step + 1);
}

SGD optimizer_with(double lr, double momentum) {
  SGD optimizer(SGD::Options{.lr = lr, .momentum = momentum});
  optimizer.attach({{.name = "", .params = {at::zeros({1}).requires_grad_()}, .names = {"p"}}});
  return optimizer;
}

}  // namespace

// Python multiplies step by step where ours is a formula of the step: 1e-12 of the initial rate over 400 steps.
TEST_CASE("schedules equal Python's over 400 steps") {
  const auto baseline = read_baseline("schedules.json");
  const double lr = baseline.at("initial_lr"), momentum = baseline.at("initial_momentum");
  std::set<std::string> classes;
  for (const auto& entry : baseline.at("cases")) {
    const auto name = entry.at("class").get<std::string>();
    INFO(name << " " << entry.at("options").dump());
    classes.insert(name);
    SGD optimizer = optimizer_with(lr, momentum);
    const auto schedule = make_from<LrScheduler>(entry);
    schedule->attach(optimizer);
    CHECK(schedule->wants_metric() == (name == "ReduceLROnPlateau"));
    int64_t step = 0;
    size_t row = 0;
    for (const int64_t at : baseline.at("steps")) {
      while (step < at) {
        ++step;
        if (schedule->wants_metric())
          schedule->step(metric(step));
        else
          schedule->step();
      }
      INFO("after " << at << " steps");
      CHECK(std::abs(optimizer.groups()[0].lr - entry.at("lr").at(row).get<double>()) < 1e-12 * lr);
      const double expected_momentum =
          entry.contains("momentum") ? entry.at("momentum").at(row).get<double>() : momentum;
      CHECK(std::abs(*optimizer.momentum() - expected_momentum) < 1e-12);
      ++row;
    }
    CHECK(step == 400);
  }
  for (const std::string& name : component_registry("lr_scheduler").names()) {
    INFO(name << " has no baseline");
    CHECK(classes.contains(name));
  }
}

TEST_CASE("every schedule resumes from its state exactly") {
  const auto baseline = read_baseline("schedules.json");
  for (const auto& entry : baseline.at("cases")) {
    INFO(entry.at("class") << " " << entry.at("options").dump());
    for (const int64_t stop : {1, 57, 137, 251}) {
      SGD a = optimizer_with(0.3, 0.9), b = optimizer_with(0.3, 0.9), c = optimizer_with(0.3, 0.9);
      const auto whole = make_from<LrScheduler>(entry), first = make_from<LrScheduler>(entry),
                 second = make_from<LrScheduler>(entry);
      whole->attach(a);
      first->attach(b);
      second->attach(c);
      for (int64_t step = 1; step <= 300; ++step) {
        whole->step(metric(step));
        if (step <= stop) first->step(metric(step));
        if (step == stop) {
          c.load_state(b.state());
          second->load_state(first->state());
        }
        if (step > stop) second->step(metric(step));
        if (step >= stop) {
          CHECK(c.groups()[0].lr == a.groups()[0].lr);
          CHECK(c.momentum() == a.momentum());
        }
      }
    }
  }
}

}  // namespace schedule_baseline_test
