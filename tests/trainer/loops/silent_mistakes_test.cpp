// Mistakes that would pass silently, or whose first message would name something else.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "failures/failure_hints.h"
#include "fulgur/callbacks/early_stopping.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/contracts/callback.h"
#include "support/shown_lines.h"
#include "trainer/boring.h"

namespace silent_mistakes_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// What a fit of M shows; with `error`, what it throws.
template <class M>
std::string fit(std::string* error = nullptr, int64_t epochs = 1) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = epochs;
  return shown_lines([&] { Trainer(options).fit(std::make_shared<M>(), regression_data()); }, error);
}

struct Manual : SelfPlanned {
  bool automatic_optimization() const override { return false; }
};

/// A callback whose state is a number under a name.
struct Remembers : Callback {
  std::string key, entry;
  Remembers(std::string k, std::string e) : key(std::move(k)), entry(std::move(e)) {}
  std::string state_key() const override { return key; }
  StateTree state() const override { return StateTree::map({{entry, int64_t{3}}}); }
  void load_state(const StateTree& state) override { state.at(entry).as_int(); }
};

}  // namespace

TEST_CASE("a training_step without a loss warns once, and an epoch without a step once more") {
  struct Forgets : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      SelfPlanned::training_step(b, i);
      return {};
    }
  };
  const std::string lines = fit<Forgets>(nullptr, 2);
  CHECK_THAT(lines, ContainsSubstring("training_step returned no loss (train, epoch 0, batch 0") &&
                        ContainsSubstring("[trainer.no_loss]"));
  CHECK_THAT(lines,
             ContainsSubstring("no optimizer made a step in the 10 batches of epoch 0: training_step returned no "
                               "loss in any of them"));
  CHECK(lines.find("batches of epoch 1") == std::string::npos);
}

TEST_CASE("a module of manual optimization that never steps is warned about") {
  struct NeverSteps : Manual {
    StepOutput training_step(const Batch& b, int64_t i) override {
      manual_backward(SelfPlanned::training_step(b, i).loss);
      return {};
    }
  };
  CHECK_THAT(fit<NeverSteps>(),
             ContainsSubstring("no optimizer made a step in the 10 batches of epoch 0: training_step "
                               "did not call optimizers(i).step()"));
  CHECK_THAT(fit<SelfPlanned>(), !ContainsSubstring("no optimizer made a step"));
  // Before the end of a long epoch.
  const auto long_epoch = [](const std::shared_ptr<LightningModule>& module) {
    const TemporaryFolder folder;
    return shown_lines([&] { Trainer(quiet(folder)).fit(module, regression_data(1010, 0, 1)); });
  };
  CHECK_THAT(long_epoch(std::make_shared<NeverSteps>()),
             ContainsSubstring("no optimizer made a step in the last 1000 batches (train, epoch 0, batch ") &&
                 ContainsSubstring("training_step did not call optimizers(i).step()"));
  struct StepsSlowly : SelfPlanned {
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 1e-4}); }
  };
  CHECK_THAT(long_epoch(std::make_shared<StepsSlowly>()), !ContainsSubstring("trainer.no_step"));
}

TEST_CASE("step and backward called under automatic optimization are errors that say who calls them") {
  struct Steps : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      StepOutput output = SelfPlanned::training_step(b, i);
      optimizers(0).step();
      return output;
    }
  };
  std::string error;
  fit<Steps>(&error);
  CHECK_THAT(error, ContainsSubstring("automatic optimization: the Trainer steps the optimizer"));
  struct Backward : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      StepOutput output = SelfPlanned::training_step(b, i);
      output.loss.backward();
      return output;
    }
  };
  error.clear();
  CHECK_THAT(fit<Backward>(&error), ContainsSubstring("training_step returns the loss, and calls no backward()"));
  CHECK(!error.empty());
}

TEST_CASE("a layer that is registered in training_step is an error that names its parameters") {
  struct Late : SelfPlanned {
    torch::nn::Linear late{nullptr};
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (!late) late = register_module("late", torch::nn::Linear(4, 2));
      StepOutput output = SelfPlanned::training_step(b, i);
      output.loss = output.loss + late(b[0]).square().mean();
      return output;
    }
  };
  std::string error;
  fit<Late>(&error);
  CHECK_THAT(error, ContainsSubstring("late.weight, late.bias") && ContainsSubstring("configure_model()"));
}

TEST_CASE("an error of the data set names the batch that was read") {
  struct Breaks : TensorDataset {
    using TensorDataset::TensorDataset;
    void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& c) const override {
      if (std::find(indices.begin(), indices.end(), 9) != indices.end()) throw Error("this sample is broken");
      TensorDataset::read(indices, first_row, out, c);
    }
    std::optional<Batch> view(int64_t, int64_t) const override { return std::nullopt; }
  };
  const TemporaryFolder folder;
  for (const bool validates : {false, true}) {
    const auto broken = std::make_shared<DataLoader>(std::make_shared<Breaks>(regression(12)),
                                                     DataLoaderOptions{.batch_size = 4, .name = "broken"});
    DataSource data(broken);
    if (validates) {
      data = DataSource(std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(12)),
                                                     DataLoaderOptions{.batch_size = 4, .name = "train"}));
      data.validation = {broken};
    }
    TrainerOptions options = quiet(folder);
    options.num_sanity_val_steps = 0;
    std::string error;
    const std::string lines = shown_lines([&] { Trainer(options).fit(std::make_shared<SelfPlanned>(), data); }, &error);
    CHECK_THAT(lines, ContainsSubstring(validates ? "the run failed in validate, epoch 0, batch 2"
                                                  : "the run failed in train, epoch 0, batch 2"));
    CHECK_THAT(lines, ContainsSubstring("while the loader reads the batch"));
    CHECK(error.find("this sample is broken") != std::string::npos);
  }
}

TEST_CASE("a metric named epoch replaces the epoch") {
  struct Names : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      log("epoch", 0.5, {.on_step = true});
      return SelfPlanned::training_step(b, i);
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.log_every_n_steps = 1;
  const auto memory = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {memory};
  Trainer(options, components).fit(std::make_shared<Names>(), regression_data());
  REQUIRE(!memory->rows.empty());
  const auto& row = memory->rows.front();
  CHECK(std::count_if(row.metrics.begin(), row.metrics.end(), [](const auto& m) { return m.first == "epoch"; }) == 1);
  for (const auto& [name, value] : row.metrics)
    if (name == "epoch") CHECK(value == 0.5);
}

TEST_CASE("the state of a callback that no longer exists is warned about, and one that does not fit is named") {
  const TemporaryFolder folder;
  const auto trainer = [&](std::vector<std::shared_ptr<Callback>> callbacks, int64_t epochs) {
    TrainerOptions options = quiet(folder);
    options.max_epochs = epochs;
    TrainerComponents components;
    for (auto& callback : callbacks) components.add(callback);
    return Trainer(options, components);
  };
  const auto saves = std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{});
  const std::string checkpoint = trainer({saves, std::make_shared<Remembers>("Memory", "count")}, 1)
                                     .fit(std::make_shared<SelfPlanned>(), regression_data())
                                     .last_checkpoint->string();
  const auto other = std::make_shared<Remembers>("Memory", "other");
  std::string error;
  shown_lines([&] { trainer({other}, 2).fit(std::make_shared<SelfPlanned>(), regression_data(), checkpoint); }, &error);
  CHECK_THAT(error, ContainsSubstring("the state of callback Memory in " + checkpoint + " does not fit") &&
                        ContainsSubstring("--load.weights_only true"));
  // An evaluation does without.
  CHECK_THAT(
      shown_lines([&] { trainer({other}, 2).test(std::make_shared<SelfPlanned>(), regression_data(), checkpoint); }),
      ContainsSubstring("the state of callback Memory") && ContainsSubstring("It is ignored"));
  CHECK_THAT(shown_lines([&] {
               trainer({std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{})}, 2)
                   .fit(std::make_shared<SelfPlanned>(), regression_data(), checkpoint);
             }),
             ContainsSubstring("has the state of callbacks that this run does not have: Memory.") &&
                 ContainsSubstring("[trainer.callback_state_unused]"));
}

TEST_CASE("a monitor that no validation can log says that none runs") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.limit_val_batches = 0;
  EarlyStopping::Options stopping;
  stopping.monitor = "val_loss";
  stopping.check_on_train_epoch_end = true;
  TrainerComponents components;
  components.add(std::make_shared<EarlyStopping>(stopping));
  std::string error;
  shown_lines([&] { Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data()); }, &error);
  CHECK_THAT(error, ContainsSubstring("monitor 'val_loss' was not logged") &&
                        ContainsSubstring("No validation runs in this fit"));
}

TEST_CASE("errors of LibTorch about dtypes, labels and batch norm have a hint") {
  const auto hint = [](const auto& fails) -> std::string {
    try {
      fails();
    } catch (const std::exception& error) {
      return fulgur::detail::hint_for(error.what()).value_or("nothing");
    }
    return "no error";
  };
  BoringModule net;
  const Tensor logits = at::ones({4, 3});
  CHECK_THAT(hint([&] { net.first->forward(at::ones({2, 4}, at::kDouble)); }), ContainsSubstring("different dtypes"));
  CHECK_THAT(hint([&] {
               at::cross_entropy_loss(logits, at::zeros({4, 1}, at::kLong));
             }),
             ContainsSubstring("one dimension too many") || ContainsSubstring("different numbers"));
  CHECK_THAT(hint([&] { at::cross_entropy_loss(logits, at::zeros({2}, at::kLong)); }),
             ContainsSubstring("different numbers of samples"));
  CHECK_THAT(hint([&] {
               at::cross_entropy_loss(logits, at::zeros({4, 3}, at::kLong));
             }),
             ContainsSubstring("labels of int64"));
  CHECK_THAT(hint([&] {
               torch::nn::BatchNorm1d(3)->forward(at::ones({1, 3}));
             }),
             ContainsSubstring("at least two samples"));
}

TEST_CASE("a refused overfit_batches is named in the error") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.overfit_batches = 0.3;
  std::string error;
  shown_lines([&] { Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data(40, 8)); }, &error);
  CHECK_THAT(error, ContainsSubstring("overfit_batches") && !ContainsSubstring("limit_val_batches"));
}

}  // namespace silent_mistakes_test
