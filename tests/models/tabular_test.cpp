#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/device/autocast.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/data/tensor_data_module.h"
#include "fulgur/models/ft_transformer.h"
#include "fulgur/models/lstm_forecaster.h"
#include "fulgur/models/tabular_mlp.h"
#include "fulgur/trainer/trainer.h"
#include "models/training.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "trainer/boring.h"

namespace tabular_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

constexpr int64_t kRows = 5;

Tensor sines(int64_t count, double start) { return at::sin(start + 0.7 * at::arange(count, at::kDouble)); }

Tensor values(const nlohmann::json& list) { return at::tensor(list.get<std::vector<double>>(), at::kDouble); }

std::shared_ptr<TabularModel> model_of(const nlohmann::json& expected) {
  TabularTask target{.num_outputs = expected.at("num_outputs"),
                     .target_mean = expected.at("mean").get<std::vector<double>>(),
                     .target_std = expected.at("std").get<std::vector<double>>()};
  if (expected.at("task") == "classification") target.task = TabularTask::Kind::classification;
  if (expected.at("model") == "TabularMlp")
    return std::make_shared<TabularMlp>(TabularMlp::Options{.num_numbers = 3,
                                                            .cardinalities = {4, 2},
                                                            .target = target,
                                                            .embedding_size = int64_t{3},
                                                            .hidden = {7, 4},
                                                            .batch_norm = expected.at("batch_norm")});
  if (expected.at("model") == "FtTransformer")
    return std::make_shared<FtTransformer>(FtTransformer::Options{.num_numbers = 3,
                                                                  .cardinalities = {4, 2},
                                                                  .target = target,
                                                                  .width = 8,
                                                                  .blocks = 2,
                                                                  .heads = 2,
                                                                  .attention_dropout = 0,
                                                                  .ffn_dropout = 0});
  return std::make_shared<LstmForecaster>(LstmForecaster::Options{.num_inputs = 2,
                                                                  .horizon = 3,
                                                                  .num_outputs = target.num_outputs,
                                                                  .target_mean = target.target_mean,
                                                                  .target_std = target.target_std,
                                                                  .hidden = 5,
                                                                  .layers = 2});
}

Batch batch_of(const nlohmann::json& expected) {
  const int64_t outputs = expected.at("num_outputs");
  if (expected.at("model") == "LstmForecaster")
    return Batch{{"input", sines(kRows * 6 * 2, 3).view({kRows, 6, 2})},
                 {"target", 5 + 2 * sines(kRows * 3 * 2, 4).view({kRows, 3, 2})}};
  const Tensor rows = at::arange(kRows, at::kLong);
  Tensor target;
  if (expected.at("task") == "classification")
    target = rows.square().remainder(3);
  else if (outputs == 1)
    target = 10 + 4 * sines(kRows, 2);
  else
    target = 10 + 4 * sines(kRows * outputs, 2).view({kRows, outputs});
  return Batch{{"numbers", 2 * sines(kRows * 3, 1).view({kRows, 3})},
               {"categories", at::stack({rows.remainder(4), rows.remainder(2)}, 1)},
               {"target", target}};
}

/// A table whose target is a function of its columns, in units far from 0 and 1.
Batch made_table(int64_t rows) {
  const Tensor numbers = at::randn({rows, 2}), categories = at::randint(1, 4, {rows, 1}, at::kLong);
  const Tensor target = 5000 + 300 * (numbers.select(1, 0) - numbers.select(1, 1) + categories.select(1, 0));
  return Batch{{"numbers", numbers}, {"categories", categories}, {"target", target}};
}

}  // namespace

TEST_CASE("the models for tables and series give what the same networks of torch's modules give in Python") {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "tabular.json");
  const auto baseline = nlohmann::json::parse(file);
  REQUIRE(baseline.at("cases").size() == 6);
  for (const auto& expected : baseline.at("cases")) {
    CAPTURE(expected.at("model").get<std::string>(), expected.at("task").get<std::string>());
    const auto model = model_of(expected);
    convert_floating(*model, at::kDouble);
    std::map<std::string, Tensor> parameters;
    for (const auto& [name, value] : unique_parameters(*model)) parameters.emplace(name, value);
    std::vector<std::string> names;
    for (const auto& [name, value] : parameters) {
      const at::NoGradGuard no_grad;
      const bool scales = name.find("norm") != std::string::npos && name.ends_with("weight");
      value.copy_(0.3 * sines(value.numel(), static_cast<double>(names.size())).view(value.sizes()) + (scales ? 1 : 0));
      names.push_back(name);
    }
    REQUIRE((names == expected.at("names").get<std::vector<std::string>>()));
    const Batch batch = batch_of(expected);
    model->eval();
    {
      const at::NoGradGuard no_grad;
      CHECK(at::allclose(model->forward(batch).reshape(-1), values(expected.at("outputs")), 1e-12, 1e-12));
    }
    model->train();
    model->training_step(batch, 0).loss.backward();
    std::vector<double> norms;
    for (const auto& [name, value] : parameters) norms.push_back(value.grad().norm().item<double>());
    CHECK(at::allclose(at::tensor(norms, at::kDouble), values(expected.at("gradient_norms")), 1e-9, 1e-11));
    // Batch norm's statistics, which the step above changed, do not enter the losses of training.
    const std::vector<double> losses = test::descend(*model, batch, 5, 0.05);
    CHECK(at::allclose(at::tensor(losses, at::kDouble), values(expected.at("losses")), 1e-10, 1e-12));
  }
}

TEST_CASE("metrics and predictions of a regression are in the units of the data") {
  seed_everything(3);
  const Batch table = made_table(40);
  const auto model =
      std::make_shared<TabularMlp>(TabularMlp::Options{.num_numbers = 2,
                                                       .cardinalities = {4},
                                                       .target = {.target_mean = {5300.0}, .target_std = {450.0}},
                                                       .hidden = {8}});
  TensorDataModule::Sets sets;
  sets.val = sets.test = table;
  auto data = std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 16});
  const test::TemporaryFolder folder;
  Trainer trainer(test::quiet(folder));
  const EvalReport validated = trainer.validate(model, data), tested = trainer.test(model, data);
  model->eval();
  const at::NoGradGuard no_grad;
  const Tensor raw = model->forward(table).squeeze(1), prediction = model->predict_step(table, 0, 0)["prediction"];
  CHECK(at::allclose(prediction, raw * 450 + 5300));
  REQUIRE(prediction.sizes() == table["target"].sizes());
  const Tensor error = (prediction - table["target"]).to(at::kDouble);
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-4 * std::abs(b); };
  for (const auto& [report, stage] : {std::pair(&validated, std::string("val")), {&tested, "test"}}) {
    CHECK(near(report->metric(stage + "_rmse"), std::sqrt(error.square().mean().item<double>())));
    CHECK(near(report->metric(stage + "_mae"), error.abs().mean().item<double>()));
    const Tensor around = (table["target"] - table["target"].mean()).to(at::kDouble);
    CHECK(std::abs(report->metric(stage + "_r2") -
                   (1 - (error.square().sum() / around.square().sum()).item<double>())) < 1e-3);
    CHECK(near(report->metric(stage + "_loss"), (error / 450).square().mean().item<double>()));
  }
  CHECK(model->named_buffers().contains("target_mean"));
}

TEST_CASE("under autocast the loss of a regression is computed in float32, with targets that are not rounded") {
  seed_everything(4);
  const Batch table = made_table(40);
  TabularMlp model({.num_numbers = 2,
                    .cardinalities = {4},
                    .target = {.target_mean = {5300.0}, .target_std = {450.0}},
                    .hidden = {8}});
  model.eval();
  const at::NoGradGuard no_grad;
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const Tensor outputs = model.forward(table);
  REQUIRE(outputs.scalar_type() == at::kBFloat16);
  const Tensor wanted = (table["target"].unsqueeze(1) - 5300) / 450;
  const Tensor loss = model.training_step(table, 0).loss;
  CHECK(loss.scalar_type() == at::kFloat);
  CHECK(at::allclose(loss, (outputs.to(at::kFloat) - wanted).square().mean(), 1e-6, 0));
}

TEST_CASE("the models for tables can overfit a batch of each task") {
  seed_everything(1);
  const Batch table = made_table(24);
  Batch classes = table;
  classes.set(2, table["numbers"].select(1, 0).gt(0).to(at::kLong));
  const TabularTask numbers{.target_mean = {5500.0}, .target_std = {500.0}};
  const TabularTask two{.task = TabularTask::Kind::classification, .num_outputs = 2};
  for (const bool classify : {false, true}) {
    const TabularTask& target = classify ? two : numbers;
    TabularMlp mlp({.num_numbers = 2, .cardinalities = {4}, .target = target, .hidden = {32, 32}});
    FtTransformer transformer({.num_numbers = 2,
                               .cardinalities = {4},
                               .target = target,
                               .width = 16,
                               .blocks = 2,
                               .heads = 2,
                               .attention_dropout = 0,
                               .ffn_dropout = 0});
    for (TabularModel* model : {static_cast<TabularModel*>(&mlp), static_cast<TabularModel*>(&transformer)}) {
      const auto losses = test::descend(*model, classify ? classes : table, 500, 0.05);
      CHECK(losses.back() < 0.7 * losses.front());
      if (!classify) continue;
      const Outputs outputs = model->predict_step(classes, 0, 0);
      CHECK(outputs["probabilities"].sizes() == at::IntArrayRef({24, 2}));
      CHECK(outputs["prediction"].scalar_type() == at::kLong);
    }
  }
}

TEST_CASE("the models for tables also learn from the inputs of arrays") {
  seed_everything(5);
  const Batch table = made_table(24);
  const Batch arrays{{"input", table["numbers"].view({24, 1, 2})}, {"target", table["target"]}};
  TabularMlp mlp({.num_numbers = 2, .target = {.target_mean = {5500.0}, .target_std = {500.0}}, .hidden = {16}});
  FtTransformer transformer({.num_numbers = 2, .width = 8, .blocks = 1, .heads = 2});
  const Batch same{
      {"numbers", table["numbers"]}, {"categories", at::zeros({24, 0}, at::kLong)}, {"target", table["target"]}};
  for (TabularModel* model : {static_cast<TabularModel*>(&mlp), static_cast<TabularModel*>(&transformer)}) {
    model->eval();
    CHECK(at::equal(model->forward(arrays), model->forward(same)));
  }
  const auto losses = test::descend(mlp, arrays, 200, 0.05);
  CHECK(losses.back() < 0.7 * losses.front());
  CHECK(mlp.predict_step(arrays, 0, 0)["prediction"].sizes() == at::IntArrayRef({24}));

  const auto error = [](TabularModel& model, const Tensor& input) {
    return message_of<ConfigError>([&] { model.forward(Batch{{"input", input}}); });
  };
  CHECK_THAT(error(mlp, at::zeros({3, 5})),
             ContainsSubstring("num_numbers = 2 values for each sample; got the shape [3, 5]") &&
                 ContainsSubstring("data.num_features"));
  CHECK_THAT(error(transformer, at::zeros({3, 2}, at::kByte)), ContainsSubstring("float_input: true"));
  TabularMlp with_categories({.num_numbers = 2, .cardinalities = {4}, .hidden = {3}});
  CHECK_THAT(error(with_categories, at::zeros({3, 2})), ContainsSubstring("Remove model.init_args.cardinalities"));
  CHECK_THAT(message_of<ConfigError>([&] {
               mlp.forward(Batch{{"image", at::zeros({3, 2})}});
             }),
             ContainsSubstring("its entries are image"));
}

TEST_CASE("options of the models for tables have their effects") {
  seed_everything(2);
  const Batch table = made_table(6);
  const auto widths = [](const TabularMlp& model) {
    std::map<std::string, std::vector<int64_t>> found;
    for (const auto& [name, value] : unique_parameters(model)) found[name] = value.sizes().vec();
    return found;
  };
  const TabularMlp automatic({.num_numbers = 2, .cardinalities = {4, 10000}, .hidden = {5}});
  CHECK(widths(automatic)["embedding0"] == std::vector<int64_t>{4, 3});
  CHECK(widths(automatic)["embedding1"] == std::vector<int64_t>{10000, 50});
  CHECK(widths(automatic)["layer0.weight"] == std::vector<int64_t>{5, 2 + 3 + 50});
  CHECK_FALSE(automatic.named_buffers().contains("norm0.running_mean"));
  TabularMlp normed({.num_numbers = 2, .cardinalities = {4}, .hidden = {5}, .batch_norm = true, .dropout = 0.5});
  CHECK(normed.named_buffers().contains("norm0.running_mean"));
  CHECK_FALSE(at::equal(normed.forward(table), normed.forward(table)));
  normed.eval();
  CHECK(at::equal(normed.forward(table), normed.forward(table)));
  // A category that the training part lacks adds nothing at the beginning.
  CHECK(automatic.named_parameters()["embedding0"][0].abs().sum().item<double>() == 0);

  for (const int which : {0, 1, 2}) {
    FtTransformer::Options options{.num_numbers = 2, .cardinalities = {4}, .width = 8, .heads = 2};
    options.attention_dropout = which == 0 ? 0.5 : 0;
    options.ffn_dropout = which == 1 ? 0.5 : 0;
    options.residual_dropout = which == 2 ? 0.5 : 0;
    FtTransformer model(options);
    CHECK_FALSE(at::equal(model.forward(table), model.forward(table)));
    model.eval();
    CHECK(at::equal(model.forward(table), model.forward(table)));
  }
  const FtTransformer sized({.num_numbers = 2, .width = 8, .blocks = 1, .heads = 2, .ffn_width = int64_t{5}});
  CHECK(sized.named_parameters()["block0.linear1.weight"].sizes() == at::IntArrayRef({10, 8}));
  CHECK_FALSE(sized.named_parameters().contains("category_bias"));
  CHECK_FALSE(sized.named_parameters().contains("block1.query.weight"));

  LstmForecaster dropped({.num_inputs = 2, .horizon = 4, .num_outputs = 3, .hidden = 6, .layers = 2, .dropout = 0.5});
  const Batch series{{"input", at::randn({5, 7, 2})}};
  CHECK(dropped.forward(series).sizes() == at::IntArrayRef({5, 4, 3}));
  CHECK_FALSE(at::equal(dropped.forward(series), dropped.forward(series)));
}

TEST_CASE("tables and options that do not fit a model are named") {
  const auto error = [](auto call) { return message_of<ConfigError>(call); };
  CHECK_THAT(error([] { TabularMlp({}); }), ContainsSubstring("must have a column"));
  CHECK_THAT(error([] { FtTransformer({.num_numbers = 1, .width = 10, .heads = 3}); }),
             ContainsSubstring("multiple of heads"));
  CHECK_THAT(error([] {
               TabularMlp({.num_numbers = 1, .target = {.target_mean = {1.0, 2.0}}});
             }),
             ContainsSubstring("target_mean must have a value for each of the num_outputs = 1"));
  CHECK_THAT(error([] { TabularMlp({.num_numbers = 1, .target = {.target_std = {0.0}}}); }),
             ContainsSubstring("target_std"));
  CHECK_THAT(error([] {
               TabularMlp({.num_numbers = 1, .target = {.task = TabularTask::Kind::classification, .num_outputs = 1}});
             }),
             ContainsSubstring("at least 2 classes"));
  CHECK_THAT(
      error([] {
        TabularMlp(
            {.num_numbers = 1,
             .target = {.task = TabularTask::Kind::classification, .num_outputs = 2, .target_mean = {0.0, 0.0}}});
      }),
      ContainsSubstring("target_mean is for a regression"));
  CHECK_THAT(error([] { LstmForecaster({.dropout = 0.5}); }), ContainsSubstring("layers is 1"));
  TabularMlp model({.num_numbers = 2, .cardinalities = {4}, .hidden = {3}});
  Batch table = made_table(3);
  CHECK_THAT(error([&] {
               model.forward(Batch{{"numbers", at::zeros({3, 5})}, {"categories", table["categories"]}});
             }),
             ContainsSubstring("num_numbers = 2") && ContainsSubstring("[3, 5]"));
  table.set(1, at::full({3, 1}, 4, at::kLong));
  CHECK_THAT(message_of<DataError>([&] { model.forward(table); }),
             ContainsSubstring("must be in [0, 4)") && ContainsSubstring("from 4 to 4"));
  table = made_table(3);
  table.set(2, at::zeros({3, 2}));
  CHECK_THAT(message_of<DataError>([&] { model.training_step(table, 0); }),
             ContainsSubstring("[3, 1]") && ContainsSubstring("[3, 2]"));
  LstmForecaster forecaster({.num_inputs = 2});
  CHECK_THAT(error([&] { forecaster.forward(Batch{{"input", at::zeros({3, 5})}}); }), ContainsSubstring("[3, 5]"));
}

TEST_CASE("the models for tables and series are registered, with all steps overridden") {
  for (const char* name : {"TabularMlp", "FtTransformer", "LstmForecaster"})
    CHECK(Registry<LightningModule>::instance().get(name).name == name);
  const auto model = make_component<LightningModule, TabularMlp>(TabularMlp::Options{.num_numbers = 2, .hidden = {3}});
  for (const Hook hook : {Hook::validation_step, Hook::test_step, Hook::predict_step})
    CHECK(fulgur::detail::ComponentAccess::overridden<LightningModule>(*model).has(hook));
}

}  // namespace tabular_test
