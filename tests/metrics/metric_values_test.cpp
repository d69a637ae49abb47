// Metrics on data of which fixtures/make_values.py knows the values: those of torchmetrics and scikit-learn.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/metrics/confusion_matrix.h"
#include "fulgur/metrics/ranking.h"
#include "fulgur/metrics/regression.h"
#include "fulgur/metrics/stat_scores.h"
#include "fulgur/trainer/yaml.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace metric_values_test {

using namespace fulgur;
using Catch::Approx;

namespace {

const nlohmann::json& values() {
  static const nlohmann::json values = [] {
    std::ifstream file(FULGUR_METRIC_VALUES);
    return nlohmann::json::parse(file);
  }();
  return values;
}

Tensor tensor_of(const nlohmann::json& item) {
  const auto shape = item.at("shape").get<std::vector<int64_t>>();
  if (item.at("is_integer").get<bool>())
    return at::tensor(item.at("values").get<std::vector<int64_t>>()).reshape(shape);
  return at::tensor(item.at("values").get<std::vector<float>>()).reshape(shape);
}

// Created as from a config.
std::shared_ptr<PredictionMetric> metric_of(const nlohmann::json& item) {
  const ComponentInfo& info = component_registry("metric").get(item.at("metric").get<std::string>());
  const auto options = info.make_options();
  Fields fields;
  options->fields(fields);
  Problems problems;
  fields.read(parse_yaml(item.at("options").dump(), "options", problems), problems, "");
  problems.throw_if_any();
  return Registry<PredictionMetric>::create(info.name, *options);
}

void check(const Tensor& value, const nlohmann::json& expected) {
  const Tensor flat = value.reshape({-1}).to(at::kDouble);
  REQUIRE(flat.numel() == static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < flat.numel(); ++i)
    // The peers compute in float32.
    CHECK(flat[i].item<double>() == Approx(expected[static_cast<size_t>(i)].get<double>()).epsilon(2e-5).margin(1e-6));
}

// The parts of a batch along its first dimension, of different sizes. Each has predictions that show whether they are
// logits.
std::vector<Tensor> parts(const Tensor& whole) {
  const int64_t count = whole.size(0), third = count / 3, half = count / 2;
  return {whole.narrow(0, 0, third), whole.narrow(0, third, half - third), whole.narrow(0, half, count - half)};
}

}  // namespace

TEST_CASE("metrics have the values of torchmetrics and scikit-learn, in whole, in batches, merged and resumed") {
  for (const nlohmann::json& item : values().at("cases")) {
    INFO(item.at("metric") << " " << item.at("options") << " of " << item.at("peer"));
    const nlohmann::json& data = values().at("data").at(item.at("data").get<size_t>());
    const Tensor prediction = tensor_of(data.at("prediction")), target = tensor_of(data.at("target"));
    const auto predictions = parts(prediction), targets = parts(target);
    const auto whole = metric_of(item), batches = metric_of(item), other = metric_of(item);
    whole->update(prediction, target);
    check(whole->compute(), item.at("expected"));
    for (size_t i = 0; i < predictions.size(); ++i) batches->update(predictions[i], targets[i]);
    CHECK(batches->updates() == 3);
    check(batches->compute(), item.at("expected"));
    // Merged from two ranks, one of which was saved in between.
    batches->reset();
    CHECK(batches->updates() == 0);
    batches->update(predictions[0], targets[0]);
    const auto resumed = metric_of(item);
    resumed->load_state(batches->state());
    resumed->update(predictions[1], targets[1]);
    other->update(predictions[2], targets[2]);
    resumed->merge_state(other->state());
    CHECK(resumed->updates() == 3);
    check(resumed->compute(), item.at("expected"));
  }
}

TEST_CASE("a metric's value does not change with later updates, and computing changes nothing") {
  metrics::ConfusionMatrix matrix({.num_classes = 2});
  matrix.update(at::tensor({0, 1, 1}), at::tensor({0, 1, 0}));
  const Tensor first = matrix.compute();
  matrix.update(at::tensor({1}), at::tensor({1}));
  CHECK(first.equal(at::tensor({1, 1, 0, 1}).reshape({2, 2})));
  CHECK(matrix.compute().equal(at::tensor({1, 1, 0, 2}).reshape({2, 2})));
}

TEST_CASE("an ignored class that is predicted is left out of the averages of IoU alone") {
  // Of torchmetrics 1.9.0: multiclass_jaccard_index, multiclass_f1_score.
  const Tensor prediction = at::tensor({0, 1, 2, 1, 0, 2, 1, 0, 2, 2}),
               target = at::tensor({0, 1, 1, 1, 0, 0, 2, 2, 0, 2});
  const auto iou = [&](metrics::Average average, int64_t ignored) {
    metrics::IoU metric({.num_classes = 3, .average = average, .ignore_index = ignored});
    metric.update(prediction, target);
    return metric.compute();
  };
  using metrics::Average;
  CHECK(iou(Average::macro, 2).item<double>() == Approx(7.0 / 12));
  CHECK(iou(Average::micro, 2).item<double>() == Approx(4.0 / 7));
  CHECK(iou(Average::weighted, 2).item<double>() == Approx(4.0 / 7));
  CHECK(iou(Average::none, 2)[1].item<double>() == Approx(2.0 / 3));
  CHECK(iou(Average::none, 2)[2].item<double>() == 0);
  CHECK(iou(Average::macro, 0).item<double>() == Approx(0.375));
  CHECK(iou(Average::micro, 0).item<double>() == Approx(0.375));
  CHECK(iou(Average::macro, -1).item<double>() == Approx(16.0 / 45));
  metrics::FBeta f1({.num_classes = 3, .ignore_index = 2});
  f1.update(prediction, target);
  CHECK(f1.compute().item<double>() == Approx(22.0 / 45));
}

TEST_CASE("metrics refuse what they cannot count") {
  using Catch::Matchers::ContainsSubstring;
  metrics::Accuracy accuracy({.num_classes = 3});
  CHECK_THROWS_WITH(accuracy.update(at::rand({4, 2}), at::tensor({0, 1, 2, 0})), ContainsSubstring("[4, 3]"));
  CHECK_THROWS_WITH(accuracy.update(at::tensor({0, 1}), at::tensor({0, 3})), ContainsSubstring("only 3 classes"));
  CHECK_THROWS_WITH(accuracy.update(at::tensor({0, 1}), at::tensor({0.0F, 1.0F})),
                    ContainsSubstring("integer targets"));
  CHECK(accuracy.updates() == 0);
  metrics::ConfusionMatrix binary({.task = metrics::Task::binary, .ignore_index = -1});
  CHECK_THROWS_WITH(binary.update(at::tensor({0, 1}), at::tensor({0, 2})), ContainsSubstring("only 2 classes"));
  CHECK_THROWS_WITH(binary.update(at::tensor({0, 2}), at::tensor({0, 1})), ContainsSubstring("only 2 classes"));
  binary.update(at::tensor({0, 7}), at::tensor({0, -1}));  // what is ignored may be anything
  CHECK(binary.compute().sum().item<int64_t>() == 1);
  CHECK_THROWS_AS(metrics::Recall({.num_classes = 1}), ConfigError);
  metrics::Auroc auroc({.task = metrics::Task::binary});
  CHECK_THROWS_WITH(auroc.update(at::tensor({0, 1}), at::tensor({0, 1})), ContainsSubstring("probabilities"));
  CHECK(auroc.compute().isnan().item<bool>());
  // The state of one with other classes.
  metrics::ConfusionMatrix two({.num_classes = 2}), three({.num_classes = 3});
  CHECK_THROWS_WITH(three.load_state(two.state()), ContainsSubstring("[2, 2]"));
  CHECK_THROWS_AS(three.merge_state(two.state()), CheckpointError);
}

TEST_CASE("R2 and Pearson's coefficient stay exact if means are large compared with deviations") {
  const Tensor x = at::arange(100, at::kDouble), y = x * 0.5 + (x * 0.7).sin();
  metrics::PearsonCorrCoef near, far;
  near.update(x, y);
  for (int64_t i = 0; i < 100; i += 10) far.update(x.narrow(0, i, 10) + 1e8, y.narrow(0, i, 10) - 1e8);
  CHECK(far.compute().item<double>() == Approx(near.compute().item<double>()).epsilon(1e-6));
}

}  // namespace metric_values_test
