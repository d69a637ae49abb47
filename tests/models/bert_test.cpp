#include "fulgur/models/bert_classifier.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <set>

#include "fulgur/core/state/rng.h"
#include "fulgur/models/classifier.h"
#include "models/formula.h"
#include "models/training.h"
#include "support/expect_error.h"
#include "support/fake_run_context.h"

namespace bert_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

BertClassifier::Options tiny() {
  return {.vocab_size = 19,
          .max_length = 8,
          .num_layers = 2,
          .num_heads = 2,
          .hidden_dim = 16,
          .mlp_dim = 24,
          .num_classes = 3,
          .dropout = 0};
}

Batch texts() {
  const Tensor mask = at::arange(6, at::kLong).unsqueeze(0).lt(at::tensor({6, 2, 4, 1}, at::kLong).unsqueeze(1));
  const Tensor tokens = (at::arange(24, at::kLong).view({4, 6}).square().remainder(18) + 1) * mask;
  return Batch{{"tokens", tokens}, {"mask", mask}, {"label", at::tensor({0, 1, 2, 1}, at::kLong)}};
}

}  // namespace

TEST_CASE("padding of a text, and what it contains, do not change what a BertClassifier computes") {
  BertClassifier model(tiny());
  test::fill_by_formula(model);
  const at::NoGradGuard no_grad;
  const Batch batch = texts();
  const Tensor logits = model.forward(batch["tokens"], batch["mask"]);
  REQUIRE(logits.sizes() == at::IntArrayRef({4, 3}));
  const Tensor alone = batch["tokens"].narrow(0, 2, 1).narrow(1, 0, 4);
  CHECK(at::allclose(model.forward(alone, {}), logits.narrow(0, 2, 1), 1e-10, 1e-12));
  const Tensor other = batch["tokens"].masked_fill(batch["mask"].logical_not(), 5);
  CHECK(at::allclose(model.forward(other, batch["mask"]), logits, 1e-10, 1e-12));
  CHECK_FALSE(at::allclose(model.forward(other, {}), logits, 1e-3, 1e-3));
  const Tensor longer = at::cat({batch["tokens"], at::zeros({4, 2}, at::kLong)}, 1);
  const Tensor longer_mask = at::cat({batch["mask"], at::zeros({4, 2}, at::kBool)}, 1);
  CHECK(at::allclose(model.forward(longer, longer_mask), logits, 1e-10, 1e-12));
  // The first type is that of a text without types.
  CHECK(at::equal(model.forward(batch["tokens"], batch["mask"], at::zeros({4, 6}, at::kLong)), logits));
  CHECK_FALSE(
      at::allclose(model.forward(batch["tokens"], batch["mask"], at::full({4, 6}, 1, at::kLong)), logits, 1e-3, 1e-3));
}

TEST_CASE("a BertClassifier learns labels, and predicts them") {
  seed_everything(4);
  BertClassifier model(tiny());
  const Batch batch = texts();
  // The first loss is that of a guess.
  CHECK(std::abs(model.training_step(batch, 0).loss.item<double>() - std::log(3.0)) < 0.1);
  test::fill_by_formula(model);  // plain gradient steps need larger weights than BERT's at the start
  const auto losses = test::descend(model, batch, 300, 0.1);
  CHECK(losses.back() < 0.05);
  model.eval();
  const Outputs outputs = model.predict_step(batch, 0, 0);
  CHECK(at::equal(outputs["prediction"], batch["label"]));
  CHECK(at::allclose(outputs["probabilities"].sum(1), at::ones_like(outputs["probabilities"].select(1, 0))));
}

TEST_CASE("a BertClassifier logs loss, accuracy and the metrics that are asked for") {
  BertClassifier::Options options = tiny();
  options.metrics = {Spec<PredictionMetric>("FBeta")};
  BertClassifier model(options);
  model.eval();
  test::FakeRunContext run;
  fulgur::detail::ComponentAccess::set_run(model, &run);
  const Batch batch = texts();
  model.validation_step(batch, 0, 0);
  std::map<std::string, double> logged;
  for (const auto& [name, value] : run.logged) logged[name] = value;
  const at::NoGradGuard no_grad;
  const Tensor logits = model.forward(batch["tokens"], batch["mask"]);
  CHECK(std::abs(logged.at("val_loss") - classification_loss(logits, batch["label"]).item<double>()) < 1e-6);
  CHECK(logged.contains("val_f_beta"));
  CHECK(std::abs(logged.at("val_acc") - logits.argmax(1).eq(batch["label"]).to(at::kDouble).mean().item<double>()) <
        1e-12);
  fulgur::detail::ComponentAccess::set_run(model, nullptr);
}

TEST_CASE("dropout, label smoothing and activation checkpointing of a BertClassifier act in training") {
  const auto loss = [](double dropout, double smoothing, const std::string& how, bool training) {
    BertClassifier::Options options = tiny();
    options.dropout = dropout;
    options.label_smoothing = smoothing;
    options.activation_checkpointing = how;
    BertClassifier model(options);
    test::fill_by_formula(model);
    model.train(training);
    seed_everything(5);
    const Tensor value = model.training_step(texts(), 0).loss;
    value.backward();
    return std::pair(value.item<double>(),
                     model.named_parameters()["embeddings.token.weight"].grad().norm().item<double>());
  };
  const auto plain = loss(0, 0, "none", true);
  CHECK(loss(0.5, 0, "none", true) != plain);
  CHECK(loss(0.5, 0, "none", false) == plain);
  CHECK(loss(0, 0.2, "none", true).first != plain.first);
  for (const char* how : {"all", "every_2"}) CHECK(loss(0.3, 0, how, true) == loss(0.3, 0, "none", true));
}

TEST_CASE("a BertClassifier begins with BERT's weights") {
  seed_everything(1);
  BertClassifier::Options options = tiny();
  options.vocab_size = 400;
  options.hidden_dim = 64;
  BertClassifier model(options);
  const auto parameters = model.named_parameters();
  CHECK(std::abs(parameters["embeddings.token.weight"].std().item<double>() - 0.02) < 0.001);
  CHECK(std::abs(parameters["layers.1.attention.in_proj.weight"].std().item<double>() - 0.02) < 0.001);
  CHECK(parameters["layers.1.attention.in_proj.bias"].count_nonzero().item<int64_t>() == 0);
  CHECK(parameters["layers.0.norm_2.weight"].eq(1).all().item<bool>());
}

TEST_CASE("a BertClassifier names options and batches that do not fit") {
  BertClassifier::Options options = tiny();
  options.num_heads = 3;
  CHECK_THAT(message_of<ConfigError>([&] { BertClassifier model(options); }),
             ContainsSubstring("hidden_dim 16 and num_heads 3"));
  options = tiny();
  options.activation_checkpointing = "some";
  CHECK_THAT(message_of<ConfigError>([&] { BertClassifier model(options); }), ContainsSubstring("every_N"));
  BertClassifier model(tiny());
  const Tensor tokens = texts()["tokens"], mask = texts()["mask"];
  CHECK_THAT(message_of<DataError>([&] { model.forward(tokens + 19, mask); }), ContainsSubstring("vocab_size = 19"));
  CHECK_THAT(message_of<DataError>([&] { model.forward(tokens, mask, tokens + 2); }),
             ContainsSubstring("type_vocab_size = 2"));
  CHECK_THAT(message_of<DataError>([&] { model.forward(tokens.to(at::kFloat), mask); }), ContainsSubstring("Long"));
  CHECK_THAT(message_of<DataError>([&] { model.forward(tokens, mask.to(at::kLong)); }), ContainsSubstring("mask"));
  CHECK_THAT(message_of<DataError>([&] { model.forward(tokens, mask.narrow(1, 0, 3)); }), ContainsSubstring("[4, 3]"));
  CHECK_THAT(message_of<DataError>([&] {
               model.forward(at::full({2, 9}, 1, at::kLong), {});
             }),
             ContainsSubstring("max_length = 8") && ContainsSubstring("got 9"));
}

}  // namespace bert_test
