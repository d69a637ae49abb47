#include "fulgur/trainer/load_from_checkpoint.h"

#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/models/mlp_classifier.h"
#include "fulgur/nn/placed.h"

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

// Has other things under the names of its bases' members.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"
template <class Base>
struct OtherNames : Base {
  std::string name = "mine", device = "mine";
  std::vector<int> hparams_, overridden_, factory_, run_, placed_modules_, children_, parameters_, buffers_;
  static void eval(const Tensor&) {}
  static void train(double, int) {}
  static void to(std::vector<int>) {}
  static int parameters(int value) { return value; }
  static int named_parameters(int value) { return value; }
  static int buffers(int value) { return value; }
  static int named_buffers(int value) { return value; }
  static int modules(int value) { return value; }
  static int named_modules(int value) { return value; }
  static int children(int value) { return value; }
  static int named_children(int value) { return value; }
  static int clone(int value) { return value; }
  static int zero_grad(int value) { return value; }
  static int is_training(int value) { return value; }
  static int apply(int value) { return value; }
  static int as(int value) { return value; }
  static int save(int value) { return value; }
  static int load(int value) { return value; }
  static int pretty_print(int value) { return value; }
  static int is_serializable(int value) { return value; }
  static int shared_from_this(int value) { return value; }
  static int register_module(int value) { return value; }
  static int register_parameter(int value) { return value; }
  static int register_buffer(int value) { return value; }
  static int freeze(int value) { return value; }
  static int unfreeze(int value) { return value; }
  static int run(int value) { return value; }
  static int in_run(int value) { return value; }
  static int hparams(int value) { return value; }
  static int optimizers(int value) { return value; }
  static int lr_schedulers(int value) { return value; }
  static int all_gather(int value) { return value; }
  static int hooks_of(int value) { return value; }
};
#pragma GCC diagnostic pop

struct OtherLayer : OtherNames<torch::nn::Module> {
  torch::nn::Linear inner{4, 2};
  OtherLayer() { torch::nn::Module::register_module("inner", inner); }
  Tensor forward(const Tensor& x) { return inner(x); }
};

struct OtherModule : OtherNames<LightningModule> {
  struct Options {
    double rate = 0.1;
    void fields(Fields& f) { f(rate, "rate", "Of dropout."); }
  };
  nn::Placed<OtherLayer> layer = nn::register_placed<OtherLayer>(*this, "layer");
  torch::nn::Dropout drop;
  explicit OtherModule(const Options& options) : drop(options.rate) {
    torch::nn::Module::register_module("drop", drop);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return at::mse_loss(drop(layer(batch[0])), batch[1]);
  }
  Outputs predict_step(const Batch& batch, int64_t, int64_t) override { return {{"y", layer(batch[0])}}; }
};

}  // namespace

TEST_CASE("a module whose members hide those of torch::nn::Module and LightningModule is fitted, saved and loaded") {
  TemporaryFolder folder;
  TrainerComponents components;
  components.optimizer = Spec<Optimizer>("SGD");
  const auto module = make_component<LightningModule, OtherModule>({.rate = 0.25});
  const FitReport report = Trainer(quiet(folder), components).fit(module, regression_data());
  CHECK(report.global_step == 10);
  LightningModule& base = *module;
  CHECK(base.hparams().find("rate")->text() == "0.25");
  CHECK(fulgur::detail::ComponentAccess::factory(base)());
  CHECK(fulgur::detail::ComponentAccess::overridden(base).exact);
  const auto loaded = load_from_checkpoint<OtherModule>(*report.last_checkpoint);
  LightningModule& loaded_base = *loaded;
  CHECK_FALSE(loaded_base.is_training());
  CHECK_FALSE(loaded->drop->is_training());
  CHECK(same_weights(weights(base), weights(loaded_base)));
}

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

TEST_CASE("load_from_checkpoint of a checkpoint of another class names both") {
  TemporaryFolder folder;
  CheckpointContent content = read_checkpoint(trained(folder, classifier()));
  content.state["config"] = std::string("model: {class_path: MlpClassifier}\n");
  const auto named = write_checkpoint(folder / "named.ckpt", content);
  CHECK_THROWS_WITH(
      load_from_checkpoint<OtherModule>(named),
      ContainsSubstring("the checkpoint is of MlpClassifier, not OtherModule") && ContainsSubstring("unknown key"));
  CHECK_THROWS_WITH(load_from_checkpoint<MlpClassifier>(named, {{"depth", "3"}}),
                    ContainsSubstring("unknown key") && !ContainsSubstring("the checkpoint is of"));
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
