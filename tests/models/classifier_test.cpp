#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/options/options.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/metrics/stat_scores.h"
#include "fulgur/models/autoencoder.h"
#include "fulgur/models/cnn_classifier.h"
#include "fulgur/models/mlp_classifier.h"
#include "fulgur/models/variational_autoencoder.h"
#include "fulgur/trainer/yaml.h"
#include "models/training.h"
#include "sample_pictures.h"
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

TEST_CASE("a classifier that gets masks says which kind of model they need") {
  const Tensor logits = at::randn({2, 3});
  const auto refused = [&](const Tensor& labels) {
    return message_of<DataError>([&] { classification_loss(logits, labels); });
  };
  CHECK_THAT(refused(at::zeros({2, 8, 8}, at::kLong)),
             ContainsSubstring("must be int64 of shape [2]; got Long of shape [2, 8, 8]") &&
                 ContainsSubstring("need a model for segmentation, such as UNet."));
  CHECK_THAT(refused(at::zeros({2}, at::kFloat)), !ContainsSubstring("UNet"));
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

TEST_CASE("a name lets a metric be used twice; two metrics of one name are an error") {
  seed_everything(4);
  const auto built = [](const std::string& metrics) {
    MlpClassifier::Options options{.in_features = 6, .hidden = {}, .num_classes = 3};
    Fields fields;
    options.fields(fields);
    Problems problems;
    fields.read(parse_yaml("metrics: [" + metrics + "]", "run.yaml", problems), problems, "");
    problems.throw_if_any();
    return std::make_shared<MlpClassifier>(options);
  };
  const auto module = built("Accuracy, {class_path: Accuracy, name: top2, init_args: {top_k: 2}}");
  const Batch samples(
      {Batch::Entry{"x", at::randn({20, 6})}, Batch::Entry{"label", at::arange(20, at::kLong).remainder_(3)}});
  TensorDataModule::Sets sets;
  sets.val = samples;
  const test::TemporaryFolder folder;
  const EvalReport report =
      Trainer(test::quiet(folder))
          .validate(module, std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 8}));
  module->eval();
  const Tensor logits = module->forward(samples[0]);
  const Tensor among = std::get<1>(logits.topk(2, 1)).eq(samples[1].unsqueeze(1)).any(1);
  CHECK(report.metric("val_top2") == among.to(at::kDouble).mean().item<double>());
  CHECK(report.metric("val_accuracy") == logits.argmax(1).eq(samples[1]).to(at::kDouble).mean().item<double>());
  CHECK(report.metric("val_accuracy") < report.metric("val_top2"));

  const auto error = [&](const std::string& metrics) { return message_of<ConfigError>([&] { built(metrics); }); };
  CHECK_THAT(error("FBeta, IoU, FBeta"),
             ContainsSubstring("two metrics are logged as val_f_beta: FBeta (metrics.0, run.yaml:1:11) and FBeta "
                               "(metrics.2, run.yaml:1:23). Give one of them a name, beside class_path: name: "));
  CHECK_THAT(error("{class_path: FBeta, name: iou}, IoU"), ContainsSubstring("two metrics are logged as val_iou"));
  CHECK_THAT(error("{class_path: FBeta, name: acc}"), ContainsSubstring("the model itself logs val_acc"));
  CHECK_THAT(error("{class_path: FBeta, name: ''}"), ContainsSubstring("must not be empty"));
}

TEST_CASE("a metric that does not fit the classifier is named with its place and the way out") {
  const auto error = [](const std::string& metric) {
    MlpClassifier::Options options{.in_features = 6, .hidden = {}, .num_classes = 3};
    Fields fields;
    options.fields(fields);
    Problems problems;
    fields.read(parse_yaml("metrics: [IoU, " + metric + "]", "run.yaml", problems), problems, "");
    problems.throw_if_any();
    return message_of<ConfigError>([&] { MlpClassifier{options}; });
  };
  CHECK_THAT(error("{class_path: Precision, init_args: {num_classes: 7}}"),
             ContainsSubstring("] Precision (metrics.1, run.yaml:1:") &&
                 ContainsSubstring("): num_classes must be that of the model, 3; got 7. Leave num_classes out."));
  CHECK_THAT(error("{class_path: Auroc, init_args: {task: binary}}"),
             ContainsSubstring("] Auroc (metrics.1, run.yaml:1:") &&
                 ContainsSubstring("so task is multiclass; got binary. Leave task out."));
  CHECK_THAT(error("{class_path: Accuracy, init_args: {top_k: 5}}"),
             ContainsSubstring("] Accuracy (metrics.1, run.yaml:1:") &&
                 ContainsSubstring("got top_k 5 for multiclass with num_classes 3. Lower top_k."));

  MlpClassifier::Options options{.in_features = 6, .hidden = {}, .num_classes = 3};
  options.metrics = {Spec<PredictionMetric>("MeanSquaredError")};
  TensorDataModule::Sets sets;
  sets.val =
      Batch({Batch::Entry{"x", at::randn({20, 6})}, Batch::Entry{"label", at::arange(20, at::kLong).remainder_(3)}});
  const auto data = std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 8});
  const test::TemporaryFolder folder;
  CHECK_THAT(
      message_of<Error>([&] { Trainer(test::quiet(folder)).validate(std::make_shared<MlpClassifier>(options), data); }),
      ContainsSubstring("] MeanSquaredError (metrics.0): predictions and targets must have the same shape") &&
          ContainsSubstring("remove it from metrics"));
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

TEST_CASE("inputs of integers are named, and images with the transforms that they need") {
  MlpClassifier mlp({.in_features = 12, .num_classes = 2});
  CnnClassifier cnn({.in_channels = 3, .height = 2, .width = 2, .num_classes = 2, .channels = {4}});
  Autoencoder autoencoder({.in_features = 12});
  VariationalAutoencoder variational({.in_features = 12});
  const Tensor images = at::ones({2, 3, 2, 2}, at::kByte);
  const auto says_transforms = [](const std::string& name, const auto& call) {
    CHECK_THAT(message_of<ConfigError>(call),
               ContainsSubstring("[models." + name +
                                 "] images must be floating-point; got Byte. Add ToFloat or "
                                 "Normalize to data.init_args.transforms"));
  };
  says_transforms("MlpClassifier", [&] { mlp.forward(images); });
  says_transforms("CnnClassifier", [&] { cnn.forward(images); });
  says_transforms("Autoencoder", [&] { autoencoder.training_step(Batch{{"image", images}}, 0); });
  says_transforms("VariationalAutoencoder", [&] { variational.training_step(Batch{{"image", images}}, 0); });
  CHECK_THAT(message_of<ConfigError>([&] { mlp.forward(images.flatten(1)); }),
             ContainsSubstring("inputs must be floating-point; got Byte") && ContainsSubstring("float_input: true"));
}

TEST_CASE("class weights weigh the samples of a training loss") {
  const Tensor logits = at::tensor({1.0, 0.0, 0.0, 2.0, 0.5, 0.0}, at::kDouble).view({3, 2});
  const Tensor labels = at::tensor({0, 1, 1}, at::kLong);
  const Tensor each = -logits.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1);
  const Tensor of_samples = at::tensor({3.0, 0.5, 0.5}, at::kDouble);
  const ClassWeights weights({3, 0.5}, 2, "Test");
  const double loss = classification_loss(logits, labels, 0, weights.on_device_of(logits)).item<double>();
  CHECK(std::abs(loss - (each * of_samples).sum().item<double>() / 4) < 1e-12);
  CHECK_FALSE(ClassWeights().on_device_of(logits).defined());
  // Logits of a lower precision are converted.
  CHECK(weights.on_device_of(logits.to(at::kBFloat16)).scalar_type() == at::kFloat);
  CHECK(
      std::abs(classification_loss(logits.to(at::kBFloat16), labels, 0, weights.on_device_of(logits.to(at::kBFloat16)))
                   .item<double>() -
               loss) < 0.02);
  const auto refused = [](std::vector<double> values) {
    return message_of<ConfigError>([&] { MlpClassifier({.num_classes = 2, .class_weights = values}); });
  };
  CHECK_THAT(refused({1, 2, 3}), ContainsSubstring("a weight for each of the num_classes = 2 classes; it has 3"));
  CHECK_THAT(refused({0, 0}), ContainsSubstring("not all 0"));
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

namespace {

struct Validated {
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::shared_ptr<LightningModule> module;
};

// Fits on 12 samples, and validates them in batches of 8.
Validated validated(std::shared_ptr<LightningModule> module, const Tensor& images, int64_t epochs = 2) {
  const test::TemporaryFolder folder;
  Validated run{.module = std::move(module)};
  TensorDataModule::Sets sets;
  sets.train = sets.val = Batch{{"image", images}, {"label", at::arange(12, at::kLong).remainder(3)}};
  TrainerOptions options = test::quiet(folder);
  options.max_epochs = epochs;
  options.num_sanity_val_steps = 1;
  TrainerComponents components;
  components.seed = 1;
  components.loggers = {run.logger};
  components.optimizer = Spec<Optimizer>("SGD");
  Trainer(options, components)
      .fit(run.module,
           std::make_shared<TensorDataModule>(
               std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = int64_t{8}, .shuffle = true}));
  return run;
}

template <class Record>
std::vector<Record> records(const Validated& run) {
  std::vector<Record> all;
  for (const auto& media : run.logger->media)
    if (const auto* record = std::get_if<Record>(&media.record)) all.push_back(*record);
  return all;
}

}  // namespace

TEST_CASE("sample_predictions: each validation logs the first samples with their labels and predictions") {
  const Tensor images = at::randn({12, 1, 8, 6});
  const auto model = std::make_shared<CnnClassifier>(CnnClassifier::Options{
      .height = 8, .width = 6, .num_classes = 3, .channels = {4}, .hidden = 0, .dropout = 0, .sample_predictions = 5});
  const Validated run = validated(model, images);
  // Two validations; the sanity check logs nothing.
  const auto pictures = records<ImageRecord>(run);
  const auto tables = records<TableRecord>(run);
  REQUIRE(pictures.size() == 2);
  REQUIRE(tables.size() == 2);
  CHECK(run.logger->media.back().step == 6);
  CHECK(pictures.back().name == "val_samples");
  CHECK(pictures.back().pixels.sizes() == at::IntArrayRef({1, 8, 5 * 7 - 1}));
  // The same samples each time, with their whole range.
  CHECK(at::equal(pictures[0].pixels, pictures[1].pixels));
  const Tensor second = images[1], shown = pictures[0].pixels.narrow(2, 7, 6);
  CHECK(shown.max().item<double>() == 255);
  CHECK(shown.min().item<double>() == 0);
  CHECK(shown.flatten()[second.argmax()].item<int64_t>() == 255);

  CHECK(tables.back().name == "val_samples");
  CHECK(tables.back().columns == std::vector<std::string>{"sample", "label", "prediction", "confidence"});
  REQUIRE(tables.back().rows.size() == 5);
  // The module has the weights of the last validation.
  model->eval();
  const at::NoGradGuard no_grad;
  const auto [confidence, prediction] = model->forward(images).softmax(1).max(1);
  for (int64_t i = 0; i < 5; ++i) {
    const auto& row = tables.back().rows[static_cast<size_t>(i)];
    CHECK(std::get<int64_t>(row[0]) == i + 1);
    CHECK(std::get<int64_t>(row[1]) == i % 3);
    CHECK(std::get<int64_t>(row[2]) == prediction[i].item<int64_t>());
    CHECK(std::abs(std::get<double>(row[3]) - confidence[i].item<double>()) < 1e-5);
  }
}

TEST_CASE("sample_predictions: more than the batch has, several rows of pictures, inputs that are none, and none") {
  const auto mlp = [](int64_t count) {
    return std::make_shared<MlpClassifier>(
        MlpClassifier::Options{.in_features = 48, .hidden = {}, .num_classes = 3, .sample_predictions = count});
  };
  const Validated many = validated(mlp(64), at::randn({12, 3, 4, 4}), 1);
  REQUIRE(records<TableRecord>(many).size() == 1);
  CHECK(records<TableRecord>(many)[0].rows.size() == 8);
  CHECK(records<ImageRecord>(many)[0].pixels.sizes() == at::IntArrayRef({3, 4, 8 * 5 - 1}));
  const Validated flat = validated(mlp(2), at::randn({12, 48}), 1);
  CHECK(records<TableRecord>(flat).size() == 1);
  CHECK(records<ImageRecord>(flat).empty());
  CHECK(validated(mlp(0), at::randn({12, 48}), 1).logger->media.empty());
  CHECK_THAT(message_of<ConfigError>([&] { mlp(-1); }), ContainsSubstring("sample_predictions"));

  const auto grid = fulgur::detail::picture_of_samples("many", at::ones({9, 2, 3}));
  REQUIRE(grid);
  CHECK(grid->pixels.sizes() == at::IntArrayRef({1, 2 * 3 - 1, 8 * 4 - 1}));
  CHECK(grid->pixels.isfinite().all().item<bool>());
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
