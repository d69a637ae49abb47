// `RunContext::estimated_steps()` is known when optimizers are planned, and is the number of steps that the fit makes.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/contracts/run_context.h"

namespace estimated_steps_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

struct Asks : SelfPlanned {
  std::optional<int64_t> planned;
  OptimizerPlan configure_optimizers() override {
    planned = run().extent().estimated_steps();
    return SelfPlanned::configure_optimizers();
  }
};

struct Counts {
  std::optional<int64_t> planned;
  int64_t done;
};

Counts fit(const TrainerOptions& options, const DataSource& data, const CheckpointChoice& from = {}) {
  const auto module = std::make_shared<Asks>();
  const FitReport report = Trainer(options).fit(module, data, from);
  return {module->planned, report.global_step};
}

}  // namespace

TEST_CASE("estimated_steps is the number of steps the fit makes: limits, windows, epochs") {
  const TemporaryFolder folder;
  for (const int64_t epochs : {1, 3})
    for (const int64_t window : {1, 3, 4, 20})
      for (const auto& [limit, batches] : std::vector<std::pair<BatchLimit, int64_t>>{
               {BatchLimit(1.0), 10}, {BatchLimit(7), 7}, {BatchLimit(0.5), 5}, {BatchLimit(99), 10}})
        for (const int64_t max_steps : {-1, 2, 1000}) {
          TrainerOptions options = quiet(folder);
          options.logger.enabled = options.enable_checkpointing = false;
          options.max_epochs = epochs;
          options.max_steps = max_steps;
          options.accumulate_grad_batches = window;
          options.limit_train_batches = limit;
          const Counts counts = fit(options, regression_data());
          INFO(epochs << " epochs of " << batches << " batches, windows of " << window << ", max_steps " << max_steps);
          CHECK(counts.planned == counts.done);
        }
}

TEST_CASE("estimated_steps of a loader without a length: max_steps, or nothing") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  CHECK_FALSE(fit(options, regression_stream(40)).planned.has_value());
  options.max_steps = 6;
  CHECK(fit(options, regression_stream(40)).planned == 6);
}

TEST_CASE("estimated_steps of a resumed fit counts its earlier part") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.max_steps = 13;
  REQUIRE(fit(options, regression_data()).done == 13);
  options.max_epochs = 4;
  options.max_steps = -1;
  const Counts resumed = fit(options, regression_data(), "last");
  CHECK(resumed.planned == 40);
  CHECK(resumed.done == 40);
}

TEST_CASE("estimated_steps of manual optimization counts batches: how often optimizers step is up to the module") {
  struct Manual : Asks {
    bool automatic_optimization() const override { return false; }
    StepOutput training_step(const Batch& batch, int64_t) override {
      manual_backward(at::mse_loss(forward(batch[0]), batch[1]));
      optimizers().step();
      optimizers().zero_grad();
      return {};
    }
  };
  const TemporaryFolder folder;
  const auto module = std::make_shared<Manual>();
  const FitReport report = Trainer(quiet(folder)).fit(module, regression_data());
  CHECK(module->planned == 10);
  CHECK(report.global_step == 10);
}

}  // namespace estimated_steps_test
