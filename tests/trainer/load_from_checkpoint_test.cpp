#include "fulgur/trainer/load_from_checkpoint.h"

#include "boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/models/mlp_classifier.h"

namespace load_from_checkpoint_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

std::shared_ptr<MlpClassifier> classifier() {
  MlpClassifier::Options options;
  options.in_features = 4;
  options.hidden = {6, 5};
  options.num_classes = 3;
  options.dropout = 0.5;
  return make_component<LightningModule, MlpClassifier>(options);
}

std::filesystem::path trained(const TemporaryFolder& folder, const std::shared_ptr<MlpClassifier>& module) {
  at::manual_seed(1);
  TensorDataModule::Sets sets;
  sets.train = Batch{{"image", at::randn({8, 4})}, {"label", at::randint(0, 3, {8})}};
  TrainerComponents components;
  components.optimizer = Spec<Optimizer>("SGD");
  const std::shared_ptr<DataModule> data =
      std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 4});
  return *Trainer(quiet(folder), components)
              .fit(std::static_pointer_cast<LightningModule>(module), data)
              .last_checkpoint;
}

}  // namespace

TEST_CASE("load_from_checkpoint returns the module, ready for inference") {
  TemporaryFolder folder;
  const auto module = classifier();
  const auto path = trained(folder, module);
  const auto loaded = load_from_checkpoint<MlpClassifier>(path);
  CHECK_FALSE(loaded->is_training());
  CHECK(same_weights(weights(*module), weights(*loaded)));
  CHECK(loaded->hparams().find("hidden")->items().size() == 2);
  module->eval();
  const Tensor x = at::randn({2, 4});
  CHECK(module->forward(x).equal(loaded->forward(x)));
}

TEST_CASE("load_from_checkpoint of a module that was constructed directly: its options are not known") {
  TemporaryFolder folder;
  MlpClassifier::Options options;
  options.in_features = 4;
  options.hidden = {6};
  options.num_classes = 3;
  const auto path = trained(folder, std::make_shared<MlpClassifier>(options));
  CHECK_THROWS_WITH(load_from_checkpoint<MlpClassifier>(path),
                    ContainsSubstring("does not contain the module's options") && ContainsSubstring("dropout") &&
                        ContainsSubstring("make_component"));
  const auto loaded =
      load_from_checkpoint<MlpClassifier>(path, {{"in_features", "4"}, {"hidden", "[6]"}, {"num_classes", "3"}});
  CHECK(loaded->hparams().find("hidden")->items().size() == 1);
}

TEST_CASE("load_from_checkpoint with overrides; options that do not fit are reported") {
  TemporaryFolder folder;
  const auto path = trained(folder, classifier());
  const auto loaded = load_from_checkpoint<MlpClassifier>(path, {{"dropout", "0.0"}});
  CHECK(loaded->hparams().find("dropout")->text() == "0.0");
  CHECK_THROWS_WITH(load_from_checkpoint<MlpClassifier>(path, {{"hidden", "[7]"}}),
                    ContainsSubstring("shape") || ContainsSubstring("missing"));
  CHECK_THROWS_WITH(load_from_checkpoint<MlpClassifier>(path, {{"depth", "3"}}), ContainsSubstring("unknown key"));
  CHECK_THROWS_WITH(load_from_checkpoint<MlpClassifier>(path, {{"dropout", "[1"}}),
                    ContainsSubstring("override of dropout"));
  CHECK_THROWS_AS(load_from_checkpoint<MlpClassifier>(folder / "nothing.ckpt"), CheckpointError);
}

TEST_CASE(
    "hyper-parameters reach every logger and the checkpoint; enable_autolog_hparams false keeps them from loggers") {
  TemporaryFolder folder;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  components.optimizer = Spec<Optimizer>("SGD");
  TrainerOptions options = quiet(folder);
  TensorDataModule::Sets sets;
  sets.train = Batch{{"image", at::randn({8, 4})}, {"label", at::randint(0, 3, {8})}};
  const std::shared_ptr<DataModule> data =
      std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 4});
  Trainer(options, components).fit(std::static_pointer_cast<LightningModule>(classifier()), data);
  REQUIRE(logger->hyperparams.find("num_classes"));
  CHECK(logger->hyperparams.find("num_classes")->text() == "3");
  logger->hyperparams = {};
  options.enable_autolog_hparams = false;
  Trainer(options, components).fit(std::static_pointer_cast<LightningModule>(classifier()), data);
  CHECK(logger->hyperparams.is_null());
}

}  // namespace load_from_checkpoint_test
