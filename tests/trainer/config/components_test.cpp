// Components that a program makes itself: what it needs to write, and how they join those of the options.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/contracts/single_process_strategy.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/fulgur.h"

namespace components_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// One loader for each stage, of as many samples as the stage's number.
struct ByStage : DataModule {
  static Loaders loader(int64_t samples) {
    const Batch batch{{"x", at::ones({samples, 4})}, {"y", at::ones({samples, 2})}};
    return {std::make_shared<DataLoader>(std::make_shared<TensorDataset>(batch), DataLoaderOptions{.batch_size = 1})};
  }
  Loaders train_dataloader() override { return loader(1); }
  Loaders val_dataloader() override { return loader(2); }
  Loaders test_dataloader() override { return loader(3); }
  Loaders predict_dataloader() override { return loader(4); }
};

/// The smallest strategy, which counts its backwards.
struct CountingStrategy : SingleProcessStrategy {
  int64_t backwards = 0;
  std::string name() const override { return "counting"; }
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override {
    ++backwards;
    SingleProcessStrategy::backward(module, loss, sync, options);
  }
};

struct OneOptimizer : SelfPlanned {
  StepOutput training_step(const Batch& batch, int64_t i) override {
    auto [one, other] = optimizers<2>();
    one.step();
    other.step();
    return SelfPlanned::training_step(batch, i);
  }
};

}  // namespace

TEST_CASE("a data module has the loaders of a module, by their names") {
  ByStage data;
  CHECK(data.loaders(RunningStage::train).at(0)->size() == 1);
  CHECK(data.loaders(RunningStage::validate).at(0)->size() == 2);
  CHECK(data.loaders(RunningStage::test).at(0)->size() == 3);
  CHECK(data.loaders(RunningStage::predict).at(0)->size() == 4);
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  // As it is: no cast to DataModule.
  CHECK(Trainer(options).fit(std::make_shared<SelfPlanned>(), std::make_shared<ByStage>()).global_step == 3);
}

TEST_CASE("a strategy needs a name, and trains as single_device does") {
  const auto weights = [](std::shared_ptr<Strategy> strategy) {
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    TrainerComponents components;
    components.strategy = std::move(strategy);
    components.seed = 3;
    at::manual_seed(3);
    const auto module = std::make_shared<SelfPlanned>();
    Trainer(options, components).fit(module, regression_data(16, 4));
    return module->parameters();
  };
  const auto counting = std::make_shared<CountingStrategy>();
  const auto own = weights(counting), built_in = weights(nullptr);
  CHECK(counting->backwards == 8);
  REQUIRE(own.size() == built_in.size());
  for (size_t i = 0; i < own.size(); ++i) CHECK(own[i].equal(built_in[i]));
}

TEST_CASE("loggers of the program are added to those of the options; the default ones then are not made") {
  const auto names_of = [](const std::function<void(TrainerOptions&)>& change) {
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 1;
    change(options);
    TrainerComponents components;
    components.loggers = {std::make_shared<MemoryLogger>()};
    std::vector<std::string> names;
    components.add(std::make_shared<LambdaCallback>(LambdaCallback::Hooks{.on_train_start = [&](RunContext& run) {
      for (const auto& logger : run.loggers()) names.push_back(logger->state_key());
    }}));
    Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(16, 4));
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(names_of([](TrainerOptions& o) { o.logger.enabled = true; }) == Names{"MemoryLogger"});
  CHECK(names_of([](TrainerOptions& o) {
          o.logger.enabled = true;
          o.logger.loggers = {Spec<Logger>("CsvLogger")};
        }) == Names{"CsvLogger", "MemoryLogger"});
  CHECK(names_of([](TrainerOptions& o) { o.logger.enabled = false; }) == Names{"MemoryLogger"});
}

TEST_CASE("optimizers<N>() says how many there are") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 1;
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<OneOptimizer>(), regression_data(16, 4)),
                    ContainsSubstring("optimizers<2>() asks for 2; configure_optimizers() planned 1."));
}

}  // namespace components_test
