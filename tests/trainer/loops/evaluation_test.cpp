#include "trainer/boring.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/safetensors.h"

namespace evaluation_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("evaluation is exact over all samples whatever the batches, and without gradients") {
  auto module = std::make_shared<SelfPlanned>();
  const Batch data = regression(13, 2);
  double expected = 0;
  {
    at::NoGradGuard no_grad;
    module->eval();
    expected = at::mse_loss(module->forward(data[0]).to(at::kDouble), data[1].to(at::kDouble)).item<double>();
  }
  TemporaryFolder folder;
  for (const int64_t batch_size : {1, 4, 5, 13}) {
    const EvalReport report = Trainer(quiet(folder)).test(module, regression_data(8, 13, batch_size));
    CHECK(report.samples == 13);
    REQUIRE(report.loaders.size() == 1);
    CHECK(std::abs(report.loaders[0][0].second - expected) < 1e-6);
  }
  for (const auto& p : module->parameters()) CHECK_FALSE(p.grad().defined());
}

TEST_CASE("the table of metrics writes NaN and infinity as words") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const std::string table = metrics_table(
      "Fit metric", {{{"accuracy", 0.5}, {"loss", nan}, {"negative", -nan}, {"best", -infinity}, {"worst", infinity}}});
  CHECK(table ==
        "┌────────────┬───────┐\n"
        "│ Fit metric │ Value │\n"
        "├────────────┼───────┤\n"
        "│ accuracy   │ 0.5   │\n"
        "│ loss       │ nan   │\n"
        "│ negative   │ nan   │\n"
        "│ best       │ -inf  │\n"
        "│ worst      │ inf   │\n"
        "└────────────┴───────┘\n");
}

TEST_CASE("several validation loaders have their own names and columns") {
  auto loader = [](int64_t n) {
    return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(n, 3)),
                                        DataLoaderOptions{.batch_size = 4});
  };
  DataSource data;
  data.validation = {loader(8), loader(4)};
  TemporaryFolder folder;
  const EvalReport report = Trainer(quiet(folder)).validate(std::make_shared<SelfPlanned>(), data);
  REQUIRE(report.loaders.size() == 2);
  CHECK(report.loaders[0][0].first == "val_loss/dataloader_idx_0");
  CHECK(report.loaders[1][0].first == "val_loss/dataloader_idx_1");
}

TEST_CASE("validation does not advance training's random numbers") {
  struct Noisy : SelfPlanned {
    using SelfPlanned::SelfPlanned;
    Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
      (void)at::randn({100});
      return SelfPlanned::validation_step(b, i, l);
    }
  };
  const auto train = [](bool validate) {
    at::manual_seed(5);
    auto module = std::make_shared<Noisy>(0.5);
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.num_sanity_val_steps = 2;
    options.val_check_interval = 3;
    options.max_epochs = 3;
    if (!validate) options.limit_val_batches = 0;
    TrainerComponents components;
    components.seed = 3;
    Trainer(options, components).fit(module, regression_data());
    return weights(*module);
  };
  CHECK(same_weights(train(true), train(false)));
}

TEST_CASE("the sanity check runs that many batches and leaves no metrics") {
  struct Counting : SelfPlanned {
    int64_t checked = 0;
    bool saw_metric = false;
    Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
      if (run().sanity_checking()) ++checked;
      return SelfPlanned::validation_step(b, i, l);
    }
    void on_train_start() override { saw_metric = run().metric("val_loss").has_value(); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.num_sanity_val_steps = 2;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  auto module = std::make_shared<Counting>();
  Trainer(options, components).fit(module, regression_data());
  CHECK(module->checked == 2);
  CHECK_FALSE(module->saw_metric);
  CHECK(logger->values("val_loss").size() == 1);
}

TEST_CASE("predict gives all rows in dataset order and writes them") {
  auto module = std::make_shared<SelfPlanned>();
  TemporaryFolder folder;
  const PredictReport report = Trainer(quiet(folder)).predict(module, regression_data(8, 13, 4));
  REQUIRE(report.loaders.size() == 1);
  REQUIRE(report.files.size() == 2);
  CHECK(report.files[0].filename() == "predictions.safetensors");
  CHECK(report.files[1].filename() == "predictions.jsonl");
  module->eval();
  at::NoGradGuard no_grad;
  const Tensor expected = module->forward(regression(13, 2)[0]);
  CHECK((report.loaders[0]["y"] - expected).abs().max().item<double>() < 1e-6);
  const SafetensorsFile file = read_safetensors(report.files[0]);
  CHECK(file.tensors[0].first == "y");
  CHECK(file.tensors[0].second.equal(report.loaders[0]["y"]));
  // One line per sample, the same numbers.
  std::ifstream lines(report.files[1]);
  std::string line;
  int64_t rows = 0;
  for (; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::json::parse(line).at("y").get<std::vector<float>>();
    REQUIRE(row.size() == 2);
    CHECK(row[0] == report.loaders[0]["y"][rows][0].item<float>());
    CHECK(row[1] == report.loaders[0]["y"][rows][1].item<float>());
  }
  CHECK(rows == 13);
  // What C++ gets is of use in autograd.
  CHECK_FALSE(report.loaders[0]["y"].is_inference());
}

TEST_CASE("predict over several loaders: one pair of files that distinguishes the loaders") {
  struct WithLoaders : SelfPlanned {
    Loaders predict_dataloader() override {
      const auto loader = [](int64_t samples) {
        return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(samples)),
                                            DataLoaderOptions{.batch_size = 4});
      };
      return {loader(5), loader(3)};
    }
  };
  TemporaryFolder folder;
  const PredictReport report = Trainer(quiet(folder)).predict(std::make_shared<WithLoaders>());
  REQUIRE(report.loaders.size() == 2);
  const SafetensorsFile file = read_safetensors(report.files[0]);
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].first == "dataloader_idx_0/y");
  CHECK(file.tensors[1].second.size(0) == 3);
  const std::string text = read_text(report.files[1]);
  CHECK(std::count(text.begin(), text.end(), '\n') == 8);
  CHECK_THAT(text, ContainsSubstring("{\"dataloader_idx\":1,\"y\":["));
}

TEST_CASE("a module without the step: validation in a fit is skipped, predict is an error") {
  struct OnlyTraining : LightningModule {
    torch::nn::Linear layer{nullptr};
    OnlyTraining() { layer = register_module("layer", torch::nn::Linear(4, 2)); }
    StepOutput training_step(const Batch& b, int64_t) override { return at::mse_loss(layer->forward(b[0]), b[1]); }
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{}); }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<OnlyTraining>();
  CHECK(Trainer(quiet(folder)).fit(module, regression_data()).global_step == 10);
  CHECK_THROWS_WITH(Trainer(quiet(folder)).predict(module, regression_data()),
                    ContainsSubstring("predict_step is not overridden"));
  // The class is hidden after its base: found when the step is first called.
  std::shared_ptr<LightningModule> hidden = std::make_shared<OnlyTraining>();
  CHECK(Trainer(quiet(folder)).fit(hidden, regression_data()).global_step == 10);
}

TEST_CASE("both a data module and the module's own loaders are an error that names both") {
  struct WithData : SelfPlanned {
    Loaders train_dataloader() override {
      return {std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(8)),
                                           DataLoaderOptions{.batch_size = 4})};
    }
  };
  TemporaryFolder folder;
  CHECK(Trainer(quiet(folder)).fit(std::make_shared<WithData>()).global_step == 2);
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<WithData>(), regression_data()),
                    ContainsSubstring("data module") && ContainsSubstring("train_dataloader()"));
  CHECK_THROWS_WITH(
      Trainer(quiet(folder)).fit(std::make_shared<WithData>(), DataSource(WithData().train_dataloader().front())),
      ContainsSubstring("both loaders") && ContainsSubstring("train_dataloader()"));
}

TEST_CASE("predict: an output missing in a later batch is an error that names it") {
  struct Forgets : BoringModule {
    Outputs predict_step(const Batch& b, int64_t batch_idx, int64_t) override {
      Outputs outputs;
      outputs.add("first", b[0]);
      if (batch_idx == 0) outputs.add("second", b[1]);
      return outputs;
    }
  };
  TemporaryFolder folder;
  CHECK_THROWS_WITH(Trainer(quiet(folder)).predict(std::make_shared<Forgets>(), regression_data(8, 13, 4)),
                    ContainsSubstring("'second', which the first batch had, is missing"));
}

}  // namespace evaluation_test
