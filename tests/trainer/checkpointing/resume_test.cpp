// Stopped at any step and resumed, a run ends with the bits of one that was not stopped.
#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

namespace resume_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Resumable : BoringModule {
  Resumable() : BoringModule(0.3) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.02, 3, 0.9); }
};

struct Outcome {
  std::map<std::string, Tensor> weights;
  std::vector<MemoryLogger::Row> rows;
  FitReport report;
};

Outcome train(const TemporaryFolder& folder, int64_t accumulate, int64_t max_batches_as_steps,
              const CheckpointChoice& from = {}) {
  at::manual_seed(21);
  auto module = std::make_shared<Resumable>();
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.max_steps = max_batches_as_steps;
  options.accumulate_grad_batches = accumulate;
  options.val_check_interval = 4;
  options.log_every_n_steps = 3;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {logger};
  Outcome outcome;
  outcome.report = Trainer(options, components).fit(module, regression_data(), from);
  outcome.weights = weights(*module);
  outcome.rows = logger->rows;
  return outcome;
}

std::vector<std::pair<int64_t, double>> values(const std::vector<MemoryLogger::Row>& rows, std::string_view name,
                                               int64_t after) {
  std::vector<std::pair<int64_t, double>> out;
  for (const auto& row : rows)
    for (const auto& [key, value] : row.metrics)
      if (key == name && row.step > after) out.emplace_back(row.step, value);
  return out;
}

}  // namespace

TEST_CASE("a run that is stopped after any step and resumed ends bit for bit like one that was not") {
  TemporaryFolder folder;
  const int64_t accumulate = GENERATE(1, 3);
  const Outcome whole = train(folder, accumulate, -1);
  const int64_t steps = whole.report.global_step;
  REQUIRE(steps == (accumulate == 1 ? 30 : 12));
  for (int64_t stop = 1; stop < steps; stop += accumulate == 1 ? 4 : 1) {
    CAPTURE(accumulate, stop);
    const Outcome first = train(folder, accumulate, stop);
    REQUIRE(first.report.last_checkpoint);
    REQUIRE(first.report.global_step == stop);
    const Outcome second = train(folder, accumulate, -1, first.report.last_checkpoint->string());
    CHECK(second.report.global_step == steps);
    CHECK(same_weights(whole.weights, second.weights));
    CHECK(values(second.rows, "val_loss", stop) == values(whole.rows, "val_loss", stop));
    // The window of step metrics that was open continues too.
    CHECK(values(second.rows, "train_loss", stop).back() == values(whole.rows, "train_loss", stop).back());
  }
}

TEST_CASE("a checkpoint inside an accumulation window holds its gradients") {
  // A callback asks for a checkpoint after the 5th batch: in the middle of the second window of 3.
  struct Asking : Callback {
    std::filesystem::path path;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t i) override {
      if (run.progress().epoch == 0 && i == 4)
        run.request_checkpoint({.name = "middle",
                                .reason = "test",
                                .best = false,
                                .keep = true,
                                .weights_only = false,
                                .owner = "Asking",
                                .score = {}});
    }
    void on_checkpoint_published(RunContext&, const CheckpointInfo& info) override {
      if (info.request.owner == "Asking") path = info.path;
    }
  };
  TemporaryFolder folder;
  const auto run = [&](std::shared_ptr<Asking> asking, const CheckpointChoice& from) {
    at::manual_seed(21);
    auto module = std::make_shared<Resumable>();
    TrainerOptions options = quiet(folder);
    options.accumulate_grad_batches = 3;
    options.max_epochs = 2;
    TrainerComponents components;
    components.seed = 5;
    if (asking) components.callbacks = {asking};
    Trainer(options, components).fit(module, regression_data(), from);
    return weights(*module);
  };
  auto asking = std::make_shared<Asking>();
  const auto whole = run(asking, {});
  REQUIRE(std::filesystem::exists(asking->path));
  CHECK(same_weights(whole, run(nullptr, asking->path.string())));
}

TEST_CASE("a resume with another model is refused with every difference, and weights-only cannot continue") {
  TemporaryFolder folder;
  const Outcome first = train(folder, 1, 3);
  struct Wider : SelfPlanned {
    torch::nn::Linear extra{nullptr};
    Wider() { extra = register_module("extra", torch::nn::Linear(2, 2)); }
  };
  auto other = std::make_shared<Wider>();
  const auto before = weights(*other);
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(other, regression_data(), first.report.last_checkpoint->string()),
                    ContainsSubstring("missing: extra.weight") && ContainsSubstring("missing: extra.bias"));
  CHECK(same_weights(before, weights(*other)));
  CHECK_THROWS_WITH(
      Trainer(quiet(folder))
          .fit(std::make_shared<SelfPlanned>(), regression_data(), first.report.last_checkpoint->string()),
      ContainsSubstring("AdamW") && ContainsSubstring("SGD"));
}

TEST_CASE("a resume with larger batches continues the epoch, even if no new batch of it is complete") {
  // Notes which samples it trains on, and the hooks at an epoch's start.
  struct Noting : SelfPlanned {
    std::vector<std::string> calls;
    void on_train_epoch_start() override { calls.emplace_back("epoch"); }
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      for (int64_t i = 0; i < batch.size(); ++i) calls.push_back(cat(batch["x"][i][0].item<float>()));
      return SelfPlanned::training_step(batch, batch_idx);
    }
  };
  // Whether loaders are created for each epoch.
  const int64_t reload_every = GENERATE(0, 1);
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.reload_dataloaders_every_n_epochs = reload_every;
  TrainerComponents components;
  components.seed = 3;
  const auto fit = [&](int64_t max_steps, int64_t batch_size, const CheckpointChoice& from) {
    const auto module = std::make_shared<Noting>();
    options.max_steps = max_steps;
    const FitReport report = Trainer(options, components).fit(module, regression_data(12, 0, batch_size), from);
    return std::pair(module->calls, report);
  };
  // It stops after the first of three batches of the second epoch. Of 12 samples 8 are left: one batch of 12.
  const auto [before, stopped] = fit(4, 4, {});
  REQUIRE(stopped.last_checkpoint);
  const auto [after, resumed] = fit(-1, 12, stopped.last_checkpoint->string());
  REQUIRE(before.size() == 1 + 12 + 1 + 4);
  CHECK(after.size() == 8);
  std::set<std::string> second(before.begin() + 14, before.end());
  second.insert(after.begin(), after.end());
  CHECK(second == std::set<std::string>(before.begin() + 1, before.begin() + 13));
  CHECK(resumed.epochs == 2);
  CHECK(resumed.global_step == 5);
}

}  // namespace resume_test
