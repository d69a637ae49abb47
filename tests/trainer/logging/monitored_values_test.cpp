// The values that callbacks and schedules decide by do not depend on when rows are written.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/callbacks/early_stopping.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"

namespace monitored_values_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

// Logs `loss` in both stages, and the number of the batch.
struct Both : BoringModule {
  LogOptions of_training;
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.01}); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
    log("loss", loss, of_training);
    log("train_index", static_cast<double>(batch_idx));
    return loss;
  }
  Outputs validation_step(const Batch&, int64_t, int64_t) override {
    log("loss", 100.0);
    return {};
  }
};

struct Asking : Callback {
  std::vector<double> at_epoch_end, at_validation_end;
  std::string name;
  explicit Asking(std::string metric) : name(std::move(metric)) {}
  std::vector<std::string> monitored_metrics() const override { return {name}; }
  void on_train_epoch_end(RunContext& run) override { at_epoch_end.push_back(run.monitored_metric(name).value_or(-1)); }
  void on_validation_end(RunContext& run) override {
    at_validation_end.push_back(run.monitored_metric(name).value_or(-1));
  }
};

}  // namespace

TEST_CASE("a monitored step metric is the last batch's, however often rows are written") {
  for (const int64_t log_every : {1, 3, 7, 50, 0}) {
    CAPTURE(log_every);
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    options.log_every_n_steps = log_every;
    const auto asking = std::make_shared<Asking>("train_index");
    TrainerComponents components;
    components.add(asking);
    Trainer(options, components).fit(std::make_shared<Both>(), regression_data(40, 8));
    CHECK(asking->at_epoch_end == std::vector<double>{9, 9});
    CHECK(asking->at_validation_end == std::vector<double>{9, 9});
  }
}

TEST_CASE("a monitored step metric that is logged several times in a batch is reduced over it") {
  struct Twice : Both {
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      const auto number = static_cast<double>(batch_idx);
      log("mean", number, {.on_step = true, .on_epoch = false, .batch_size = 1});
      log("mean", number + 4, {.on_step = true, .on_epoch = false, .batch_size = 3});
      log("most", number, {.on_step = true, .on_epoch = false, .reduce_fx = Reduce::max});
      log("most", 2.0, {.on_step = true, .on_epoch = false, .reduce_fx = Reduce::max});
      log("last", number, {.on_step = true, .on_epoch = false, .reduce_fx = Reduce::last});
      log("last", 3.0, {.on_step = true, .on_epoch = false, .reduce_fx = Reduce::last});
      return Both::training_step(batch, batch_idx);
    }
  };
  for (const auto& [name, expected] : std::map<std::string, double>{{"mean", 12}, {"most", 9}, {"last", 3}}) {
    CAPTURE(name);
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.log_every_n_steps = 4;
    const auto asking = std::make_shared<Asking>(name);
    TrainerComponents components;
    components.add(asking);
    Trainer(options, components).fit(std::make_shared<Twice>(), regression_data(40, 0));
    CHECK(asking->at_epoch_end == std::vector<double>{expected});
  }
}

TEST_CASE("a monitored step metric continues over a resume") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.log_every_n_steps = 50;
  options.max_steps = 7;
  const auto asking = std::make_shared<Asking>("train_index");
  TrainerComponents components;
  components.add(asking);
  Trainer(options, components).fit(std::make_shared<Both>(), regression_data(40, 0));
  struct First : Callback {
    std::optional<double> value;
    std::vector<std::string> monitored_metrics() const override { return {"train_index"}; }
    void on_train_start(RunContext& run) override { value = run.monitored_metric("train_index"); }
  };
  const auto first = std::make_shared<First>();
  components.callbacks = {first};
  options.max_steps = -1;
  Trainer(options, components).fit(std::make_shared<Both>(), regression_data(40, 0), "auto");
  CHECK(first->value == 6);
}

TEST_CASE("of a name that both stages log, decisions are made by validation's value") {
  for (const bool on_epoch : {false, true})
    for (const int64_t log_every : {1, 3, 50}) {
      CAPTURE(on_epoch, log_every);
      const TemporaryFolder folder;
      TrainerOptions options = quiet(folder);
      options.max_epochs = 2;
      options.log_every_n_steps = log_every;
      ModelCheckpoint::Options saving;
      saving.monitor = "loss";
      const auto checkpoints = std::make_shared<ModelCheckpoint>(saving);
      EarlyStopping::Options stopping;
      stopping.monitor = "loss";
      const auto early = std::make_shared<EarlyStopping>(stopping);
      const auto asking = std::make_shared<Asking>("loss");
      TrainerComponents components;
      for (const std::shared_ptr<Callback>& callback :
           {std::shared_ptr<Callback>(checkpoints), std::shared_ptr<Callback>(early),
            std::shared_ptr<Callback>(asking)})
        components.add(callback);
      const auto module = std::make_shared<Both>();
      module->of_training.on_epoch = on_epoch;
      Trainer(options, components).fit(module, regression_data(40, 8));
      CHECK(checkpoints->best_score() == 100.0);
      CHECK(early->best_score() == 100.0);
      CHECK(asking->at_epoch_end == std::vector<double>{100, 100});
    }
}

}  // namespace monitored_values_test
