#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/options/options.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/metrics/stat_scores.h"
#include "fulgur/models/cnn_classifier.h"
#include "fulgur/models/mlp_classifier.h"
#include "fulgur/trainer/yaml.h"
#include "models/training.h"
#include "support/expect_error.h"
#include "trainer/boring.h"

namespace classifier_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

Batch images_and_labels(int64_t count = 16) {
  return Batch({Batch::Entry{"image", at::randn({count, 1, 28, 28})},
                Batch::Entry{"label", at::arange(count, at::kLong).remainder_(10)}});
}

int64_t parameters_of(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : unique_parameters(module)) count += parameter.value.numel();
  return count;
}

}  // namespace

TEST_CASE("options from C++ keep the conditions of a config: sizes of 0 are named") {
  const auto says = [](const std::string& message, const std::string& option) {
    CHECK_THAT(message, ContainsSubstring(option + ": must be at least 1"));
  };
  says(message_of<ConfigError>([] {
         MlpClassifier(MlpClassifier::Options{.hidden = {4, 0}});
       }),
       "models.MlpClassifier.hidden.1");
  says(message_of<ConfigError>([] { MlpClassifier(MlpClassifier::Options{.in_features = 0}); }),
       "models.MlpClassifier.in_features");
  says(message_of<ConfigError>([] { CnnClassifier(CnnClassifier::Options{.channels = {0}}); }),
       "models.CnnClassifier.channels.0");
}

TEST_CASE("the integers of models are bounded from below, where the doc does not say what 0 is") {
  const ComponentRegistry& registry = component_registry("model");
  size_t checked = 0;
  for (const std::string& name : registry.names()) {
    if (registry.get(name).file.find("models/src") == std::string::npos) continue;
    const auto options = registry.get(name).make_options();
    Fields fields;
    options->fields(fields);
    for (const Field& field : fields.all()) {
      const TypeInfo* type = &field.type;
      while (type->kind == TypeInfo::Kind::list) type = &type->parts[0];
      if (type->kind != TypeInfo::Kind::integer) continue;
      CAPTURE(name, field.name);
      CHECK((type->minimum.value_or(0) >= 1 || field.doc.find("0:") != std::string::npos));
      ++checked;
    }
  }
  CHECK(checked > 10);
}

TEST_CASE("the classifiers have the layers that their options say") {
  MlpClassifier mlp({.in_features = 20, .hidden = {7, 5}, .num_classes = 3});
  CHECK(parameters_of(mlp) == 20 * 7 + 7 + 7 * 5 + 5 + 5 * 3 + 3);
  CHECK(mlp.forward(at::randn({4, 2, 10})).sizes() == at::IntArrayRef({4, 3}));
  MlpClassifier linear({.in_features = 20, .hidden = {}, .num_classes = 3});
  CHECK(parameters_of(linear) == 63);

  CnnClassifier cnn({.in_channels = 3, .height = 12, .width = 9, .num_classes = 4, .channels = {5, 6}, .hidden = 8});
  CHECK(parameters_of(cnn) == (3 * 5 * 9 + 10) + (5 * 6 * 9 + 12) + (6 * 3 * 2 * 8 + 8) + (8 * 4 + 4));
  CHECK(cnn.forward(at::randn({4, 3, 12, 9})).sizes() == at::IntArrayRef({4, 4}));
  CHECK_FALSE(cnn.named_parameters().contains("conv0.bias"));
  CHECK(cnn.named_buffers().contains("norm1.running_mean"));
  CnnClassifier direct({.channels = {4}, .hidden = 0});
  CHECK(direct.forward(at::randn({2, 1, 28, 28})).sizes() == at::IntArrayRef({2, 10}));
}

TEST_CASE("the classifiers can overfit a batch") {
  seed_everything(1);
  const Batch batch = images_and_labels();
  MlpClassifier mlp({});
  CnnClassifier cnn({.channels = {4, 8}, .hidden = 16, .dropout = 0.0});
  for (Classifier* classifier : {static_cast<Classifier*>(&mlp), static_cast<Classifier*>(&cnn)}) {
    const auto losses = test::descend(*classifier, batch, 80, 0.1);
    CHECK(losses.front() > 1.5);
    CHECK(losses.back() < 0.2);
    classifier->eval();
    const Outputs outputs = classifier->predict_step(batch, 0, 0);
    CHECK(at::allclose(outputs["probabilities"].sum(1), at::ones_like(outputs["probabilities"].sum(1))));
    CHECK(outputs["prediction"].eq(batch[1]).sum().item<int64_t>() >= 15);
  }
}

TEST_CASE("the classifiers log further metrics of validation and test, under the names of their classes") {
  seed_everything(4);
  MlpClassifier::Options options{.in_features = 6, .hidden = {}, .num_classes = 3};
  Fields fields;
  options.fields(fields);
  Problems problems;
  const char* const config = "metrics: [IoU, {class_path: FBeta, init_args: {beta: 2}}]";
  fields.read(parse_yaml(config, "options", problems), problems, "");
  problems.throw_if_any();
  auto module = std::make_shared<MlpClassifier>(options);
  const Batch samples(
      {Batch::Entry{"x", at::randn({20, 6})}, Batch::Entry{"label", at::arange(20, at::kLong).remainder_(3)}});
  TensorDataModule::Sets sets;
  sets.val = sets.test = samples;
  auto data = std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 8});
  const test::TemporaryFolder folder;
  Trainer trainer(test::quiet(folder));
  const EvalReport validated = trainer.validate(module, data), tested = trainer.test(module, data);
  module->eval();
  metrics::IoU iou({.num_classes = 3});
  metrics::FBeta f_beta({.num_classes = 3, .beta = 2});
  for (PredictionMetric* metric : {static_cast<PredictionMetric*>(&iou), static_cast<PredictionMetric*>(&f_beta)})
    metric->update(module->forward(samples[0]), samples[1]);
  for (const auto& [report, stage] : {std::pair(&validated, std::string("val")), {&tested, "test"}}) {
    CHECK(report->metric(stage + "_iou") == iou.compute().item<double>());
    CHECK(report->metric(stage + "_f_beta") == f_beta.compute().item<double>());
  }
}

TEST_CASE("two metrics of one class are an error") {
  MlpClassifier::Options options;
  options.metrics = {Spec<PredictionMetric>("FBeta"), Spec<PredictionMetric>("FBeta")};
  CHECK_THAT(message_of<ConfigError>([&] { MlpClassifier{options}; }), ContainsSubstring("FBeta is there twice"));
}

TEST_CASE("the order in memory does not change the results of the convolutions") {
  seed_everything(2);
  for (const int64_t channels : {1, 3}) {
    CnnClassifier cnn({.in_channels = channels, .height = 12, .width = 8, .channels = {4, 8}, .hidden = 0});
    cnn.eval();
    const Tensor x = at::randn({5, channels, 12, 8});
    const Tensor strided = at::randn({5, channels, 12, 16}).narrow(3, 0, 8);
    strided.copy_(x);
    const auto parameters = cnn.named_parameters();
    // By hand and in plain order: convolution, batch norm with start statistics, pooling, ReLU.
    Tensor y = x;
    for (const char* layer : {"0", "1"}) {
      y = at::conv2d(y, parameters[std::string("conv") + layer + ".weight"], {}, 1, at::IntArrayRef({1, 1}));
      y = at::max_pool2d((y / std::sqrt(1 + 1e-5)).relu(), 2);
    }
    y = at::linear(y.flatten(1), parameters["head.layer0.weight"], parameters["head.layer0.bias"]);
    CHECK(at::allclose(cnn.forward(x), y, 1e-4, 1e-5));
    CHECK(at::allclose(cnn.forward(strided), y, 1e-4, 1e-5));
    for (const auto& parameter : parameters) CHECK(parameter.value().is_contiguous());
  }
}

TEST_CASE("dropout acts in training only") {
  MlpClassifier mlp({.dropout = 0.5});
  const Tensor x = at::randn({4, 784});
  CHECK_FALSE(at::equal(mlp.forward(x), mlp.forward(x)));
  mlp.eval();
  CHECK(at::equal(mlp.forward(x), mlp.forward(x)));
}

TEST_CASE("inputs of another shape are named with what was expected") {
  MlpClassifier mlp({});
  CHECK_THAT(message_of<ConfigError>([&] {
               mlp.forward(at::randn({4, 3, 32, 32}));
             }),
             ContainsSubstring("MlpClassifier") && ContainsSubstring("in_features = 784") &&
                 ContainsSubstring("[4, 3, 32, 32]"));
  CHECK_THROWS_AS(mlp.forward(at::randn({784})), ConfigError);
  CnnClassifier cnn({});
  CHECK_THAT(message_of<ConfigError>([&] {
               cnn.forward(at::randn({4, 3, 32, 32}));
             }),
             ContainsSubstring("[N, 1, 28, 28]") && ContainsSubstring("[4, 3, 32, 32]"));
  CHECK_THROWS_AS(cnn.forward(at::randn({4, 784})), ConfigError);
  CHECK_THAT(message_of<ConfigError>([] { CnnClassifier({.channels = {4, 4, 4, 4, 4}}); }), ContainsSubstring("28x28"));
  CHECK_THROWS_AS(MlpClassifier({.hidden = {0}}), ConfigError);
}

TEST_CASE("F38: a label out of range is named with index and value") {
  const Tensor logits = at::zeros({3, 4});
  CHECK_THAT(message_of<DataError>([&] {
               classification_loss(logits, at::tensor({0, 1, 4}, at::kLong));
             }),
             ContainsSubstring("got 4 at index 2"));
  CHECK_THAT(message_of<DataError>([&] {
               classification_loss(logits, at::tensor({0, -1, 3}, at::kLong));
             }),
             ContainsSubstring("got -1 at index 1"));
  CHECK_THAT(message_of<DataError>([&] {
               classification_loss(logits, at::tensor({0, 1}, at::kLong));
             }),
             ContainsSubstring("[2]"));
  CHECK_THAT(message_of<DataError>([&] { classification_loss(logits, at::zeros({3})); }), ContainsSubstring("Float"));
  CHECK(classification_loss(logits, at::tensor({0, 1, -100}, at::kLong)).item<double>() > 1.38);
}

TEST_CASE("the built-in models are registered, with all steps overridden") {
  for (const char* name : {"MlpClassifier", "CnnClassifier", "Autoencoder"}) {
    const auto& info = Registry<LightningModule>::instance().get(name);
    const auto module = std::static_pointer_cast<LightningModule>(info.create(*info.make_options()));
    CHECK(fulgur::detail::ComponentAccess::overridden<LightningModule>(*module).exact);
    for (const Hook hook : {Hook::validation_step, Hook::test_step, Hook::predict_step})
      CHECK(fulgur::detail::ComponentAccess::overridden<LightningModule>(*module).has(hook));
    CHECK_FALSE(
        fulgur::detail::ComponentAccess::overridden<LightningModule>(*module).has(Hook::on_after_batch_transfer));
    CHECK(module->hparams().is_map());
  }
}

}  // namespace classifier_test
