// on_nonfinite: skip with clipping and several optimizers.
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/optim/lbfgs.h"
#include "trainer/boring.h"

namespace nonfinite_combinations_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

TrainerOptions skipping(const TemporaryFolder& folder) {
  TrainerOptions options = quiet(folder);
  options.on_nonfinite = OnNonFinite::skip;
  options.max_steps = 6;
  return options;
}

/// Two optimizers, of which one has a gradient that is not finite in the third batch. Both clip before both step.
struct TwoOptimizers : BoringModule {
  size_t bad;
  double value;
  ClipAlgorithm algorithm;
  std::vector<Tensor> before, after;  // of the third batch: a weight of each optimizer
  TwoOptimizers(size_t index, double gradient, ClipAlgorithm by) : bad(index), value(gradient), algorithm(by) {}
  bool automatic_optimization() const override { return false; }
  OptimizerPlan configure_optimizers() override {
    auto a = std::make_shared<SGD>(SGD::Options{.lr = 0.05}), b = std::make_shared<SGD>(SGD::Options{.lr = 0.05});
    a->attach({{.name = "", .params = first->parameters(), .names = {"first.weight", "first.bias"}}});
    b->attach({{.name = "", .params = second->parameters(), .names = {"second.weight", "second.bias"}}});
    return OptimizerPlan::several({{a, {}}, {b, {}}});
  }
  std::vector<Tensor> both() const { return {first->weight.detach().clone(), second->weight.detach().clone()}; }
  StepOutput training_step(const Batch& b, int64_t i) override {
    if (i == 2) before = both();
    manual_backward(at::mse_loss(forward(b[0]), b[1]));
    if (i == 2) (bad == 0 ? first : second)->weight.mutable_grad()[0][0].fill_(value);
    for (const size_t index : {0, 1}) clip_gradients(optimizers(index).optimizer(), 0.5, algorithm);
    for (const size_t index : {0, 1}) {
      optimizers(index).step();
      optimizers(index).zero_grad();
    }
    if (i == 2) after = both();
    return {};
  }
};

/// An infinite gradient, and clipping of values, which makes it finite.
struct Infinite : SelfPlanned {
  void on_after_backward() override {
    if (global_step() == 2) first->weight.mutable_grad()[0][0].fill_(kInf);
  }
};

}  // namespace

TEST_CASE("skip: of two optimizers that clip before they step, the one with the bad gradient is skipped") {
  for (const size_t bad : {0, 1})
    for (const ClipAlgorithm algorithm : {ClipAlgorithm::norm, ClipAlgorithm::value})
      for (const double value : {kNan, kInf}) {
        CAPTURE(bad, algorithm == ClipAlgorithm::norm, value);
        const TemporaryFolder folder;
        auto module = std::make_shared<TwoOptimizers>(bad, value, algorithm);
        const FitReport report = Trainer(skipping(folder)).fit(module, regression_data());
        CHECK(module->before[bad].equal(module->after[bad]));
        CHECK(!module->before[1 - bad].equal(module->after[1 - bad]));
        CHECK(report.metric("skipped_steps") == 1);
      }
}

TEST_CASE("skip: whether the norm of the gradients is logged does not change the weights") {
  std::vector<std::map<std::string, Tensor>> of_runs;
  for (const bool logged : {false, true}) {
    const TemporaryFolder folder;
    TrainerOptions options = skipping(folder);
    options.gradient_clip_val = 0.1;
    options.gradient_clip_algorithm = ClipAlgorithm::value;
    options.log_grad_norm = logged;
    at::manual_seed(3);
    auto module = std::make_shared<Infinite>();
    const FitReport report = Trainer(options).fit(module, regression_data());
    CHECK(report.metric("skipped_steps") == 1);
    of_runs.push_back(weights(*module));
  }
  CHECK(same_weights(of_runs[0], of_runs[1]));
}

TEST_CASE("skip: a loss that is not finite skips the step of the optimizer whose gradients it makes") {
  // Both losses before both steps; that of the second optimizer is NaN, with finite gradients.
  struct TwoLosses : TwoOptimizers {
    TwoLosses() : TwoOptimizers(1, 0, ClipAlgorithm::norm) {}
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (i == 2) before = both();
      manual_backward(second->weight.square().sum() + (i == 2 ? kNan : 0), optimizers(1));
      manual_backward(at::mse_loss(forward(b[0]), b[1]), optimizers(0));
      for (const size_t index : {0, 1}) {
        optimizers(index).step();
        optimizers(index).zero_grad();
      }
      if (i == 2) after = both();
      return {};
    }
  };
  const TemporaryFolder folder;
  auto module = std::make_shared<TwoLosses>();
  const FitReport report = Trainer(skipping(folder)).fit(module, regression_data());
  CHECK(!module->before[0].equal(module->after[0]));
  CHECK(module->before[1].equal(module->after[1]));
  CHECK(report.metric("skipped_steps") == 1);
}

TEST_CASE("rollback waits for the end of training_step: a graph may still need the weights") {
  struct OneForward : TwoOptimizers {
    OneForward() : TwoOptimizers(0, 0, ClipAlgorithm::norm) {}
    StepOutput training_step(const Batch& b, int64_t i) override {
      const Tensor out = forward(b[0]);
      manual_backward(out.square().mean() * (i == 4 ? kNan : 1), {.retain_graph = true});
      manual_backward(at::mse_loss(out, b[1]));
      for (const size_t index : {0, 1}) {
        optimizers(index).step();
        optimizers(index).zero_grad();
      }
      return {};
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = skipping(folder);
  options.on_nonfinite = OnNonFinite::rollback;
  options.max_steps = 8;
  TrainerComponents components;
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 2;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  auto module = std::make_shared<OneForward>();
  const FitReport report = Trainer(options, components).fit(module, regression_data());
  CHECK(report.global_step == 8);
  for (const auto& [name, value] : weights(*module)) CHECK(value.isfinite().all().item<bool>());
}

TEST_CASE("stop: LBFGS ends with finite weights") {
  struct Diverges : BoringModule {
    int64_t evaluations = 0;
    OptimizerPlan configure_optimizers() override {
      return std::make_shared<LBFGS>(LBFGS::Options{.lr = 0.5, .max_iter = 3});
    }
    StepOutput training_step(const Batch& b, int64_t) override { return at::mse_loss(forward(b[0]), b[1]); }
    void on_after_backward() override {
      if (++evaluations == 5) first->weight.mutable_grad()[0][0].fill_(kInf);
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = skipping(folder);
  options.on_nonfinite = OnNonFinite::stop;
  options.gradient_clip_val = 1;
  options.check_every = 1;
  auto module = std::make_shared<Diverges>();
  const FitReport report = Trainer(options).fit(module, regression_data());
  CHECK(report.exit_code == ExitCode::non_finite);
  for (const auto& [name, value] : weights(*module)) CHECK(value.isfinite().all().item<bool>());
}

}  // namespace nonfinite_combinations_test
