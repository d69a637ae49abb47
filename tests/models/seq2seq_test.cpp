#include "fulgur/models/seq2seq.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/nn/replica_tensors.h"
#include "models/training.h"
#include "support/expect_error.h"

namespace seq2seq_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

Seq2Seq::Options tiny(RecurrentCell cell = RecurrentCell::gru) {
  return {.vocabulary = 7, .embedding = 8, .hidden = 24, .layers = 2, .cell = cell};
}

Batch reversals(int64_t samples, int64_t length) {
  const Tensor source = at::randint(1, 7, {samples, length}, at::kLong);
  return Batch({Batch::Entry{"source", source}, Batch::Entry{"target", source.flip(1)}});
}

Tensor values(const nlohmann::json& list) { return at::tensor(list.get<std::vector<double>>(), at::kDouble); }

std::vector<NamedParameter> by_name(const torch::nn::Module& module) {
  auto parameters = unique_parameters(module);
  std::sort(parameters.begin(), parameters.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return parameters;
}

}  // namespace

TEST_CASE("a Seq2Seq gives what the same network of torch's modules gives in Python") {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "seq2seq.json");
  const auto baseline = nlohmann::json::parse(file);
  const int64_t samples = baseline.at("batch"), length = baseline.at("length"), vocabulary = baseline.at("vocabulary");
  for (const auto& expected : baseline.at("cases")) {
    CAPTURE(expected.at("cell"));
    Seq2Seq model({.vocabulary = vocabulary,
                   .embedding = baseline.at("embedding"),
                   .hidden = baseline.at("hidden"),
                   .layers = baseline.at("layers"),
                   .cell = expected.at("cell") == "lstm" ? RecurrentCell::lstm : RecurrentCell::gru});
    convert_floating(model, at::kDouble);
    const auto parameters = by_name(model);
    std::vector<std::string> names;
    for (const auto& [name, value] : parameters) {
      const at::NoGradGuard no_grad;
      value.copy_(
          (1.5 * at::sin(static_cast<double>(names.size()) + 2.1 * at::arange(value.numel(), at::kDouble).square()))
              .view(value.sizes()));
      names.push_back(name);
    }
    REQUIRE((names == expected.at("names").get<std::vector<std::string>>()));
    const Tensor tokens =
        at::arange(2 * samples * length, at::kLong).square().remainder(vocabulary).view({2, samples, length});
    CHECK(at::allclose(model.forward(tokens[0], tokens[1]).reshape(-1), values(expected.at("logits")), 1e-10, 1e-12));
    const Tensor loss =
        model.training_step(Batch({Batch::Entry{"source", tokens[0]}, Batch::Entry{"target", tokens[1]}}), 0).loss;
    CHECK(std::abs(loss.item<double>() - expected.at("loss").get<double>()) < 1e-10);
    loss.backward();
    std::vector<double> norms;
    for (const auto& [name, value] : parameters) norms.push_back(value.grad().norm().item<double>());
    CHECK(at::allclose(values(norms), values(expected.at("gradient_norms")), 1e-10, 1e-12));
    const Tensor decoded = model.decode(tokens[0], length + 2);
    CHECK((decoded.reshape(-1).equal(at::tensor(expected.at("decoded").get<std::vector<int64_t>>()))));
    CHECK_FALSE(decoded.requires_grad());
  }
}

TEST_CASE("a Seq2Seq has an encoder and a decoder that a strategy may place") {
  Seq2Seq model(tiny());
  REQUIRE(fulgur::detail::ComponentAccess::placed_modules(model).size() == 2);
  CHECK(fulgur::detail::ComponentAccess::placed_modules(model)[0]->name() == "encoder");
  CHECK(fulgur::detail::ComponentAccess::placed_modules(model)[1]->name() == "decoder");
  const auto parameters = model.named_parameters();
  CHECK((parameters["encoder.embedding.weight"].sizes() == at::IntArrayRef({7, 8})));
  CHECK((parameters["encoder.rnn.weight_hh_l1"].sizes() == at::IntArrayRef({3 * 24, 24})));
  CHECK((parameters["decoder.rnn.weight_ih_l0"].sizes() == at::IntArrayRef({3 * 24, 8})));
  CHECK((parameters["decoder.output.weight"].sizes() == at::IntArrayRef({7, 24})));
  CHECK(parameters.size() == 2 * (1 + 8) + 2);
  CHECK((Seq2Seq(tiny(RecurrentCell::lstm)).named_parameters()["encoder.rnn.weight_hh_l1"].sizes() ==
         at::IntArrayRef({4 * 24, 24})));
  CHECK(model.num_tokens(reversals(3, 5)) == 15);
  CHECK((model.forward(reversals(3, 5)["source"], reversals(3, 4)["target"]).sizes() == at::IntArrayRef({3, 4, 7})));
}

TEST_CASE("a Seq2Seq learns to reverse, also when decoding by itself") {
  for (const RecurrentCell cell : {RecurrentCell::gru, RecurrentCell::lstm}) {
    CAPTURE(enum_text(cell));
    seed_everything(4);
    Seq2Seq::Options options = tiny(cell);
    options.layers = 1;
    Seq2Seq model(options);
    const Batch batch = reversals(6, 4);
    const auto losses = test::descend(model, batch, 600, 0.7);
    CHECK(losses.front() > 1.7);  // a guess among 7: 1.95
    CHECK(losses.back() < 0.1);
    model.eval();
    const Outputs outputs = model.predict_step(batch, 0, 0);
    CHECK((outputs["tokens"].equal(batch["target"])));
    CHECK((model.decode(batch["source"], 2).equal(batch["target"].narrow(1, 0, 2))));
  }
}

TEST_CASE("a Seq2Seq on groups of devices gives the losses and gradients of one") {
  for (const RecurrentCell cell : {RecurrentCell::gru, RecurrentCell::lstm}) {
    CAPTURE(enum_text(cell));
    Seq2Seq one(tiny(cell)), many(tiny(cell));
    convert_floating(one, at::kDouble);
    convert_floating(many, at::kDouble);
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : one.named_parameters()) many.named_parameters()[item.key()].copy_(item.value());
    }
    const at::Device cpu(at::kCPU);
    std::vector<nn::ReplicaTensors> groups;
    for (const auto& [place, devices] : {std::pair(0, 2), std::pair(1, 3)}) {
      PlacedModule& placed = *fulgur::detail::ComponentAccess::placed_modules(many)[static_cast<size_t>(place)];
      placed.place(std::vector<at::Device>(static_cast<size_t>(devices), cpu));
      for (const auto& replica : placed.replicas()) convert_floating(*replica, at::kDouble);
      groups.emplace_back(*placed.module(), std::vector(placed.replicas().begin() + 1, placed.replicas().end()))
          .copy_values();
    }
    const Batch batch = reversals(5, 4);
    const Tensor a = one.training_step(batch, 0).loss, b = many.training_step(batch, 0).loss;
    CHECK(at::allclose(a, b, 1e-12, 1e-12));
    a.backward();
    b.backward();
    for (nn::ReplicaTensors& group : groups) group.reduce_gradients();
    for (const auto& item : one.named_parameters())
      CHECK(at::allclose(item.value().grad(), many.named_parameters()[item.key()].grad(), 1e-10, 1e-12));
    CHECK((one.decode(batch["source"], 4).equal(many.decode(batch["source"], 4))));
  }
}

TEST_CASE("dropout of a Seq2Seq acts in training only, on embeddings and between layers") {
  for (const int64_t layers : {1, 2}) {
    Seq2Seq::Options options = tiny();
    options.layers = layers;
    options.dropout = 0.5;
    Seq2Seq model(options);
    const Batch batch = reversals(2, 4);
    CHECK_FALSE(
        at::equal(model.forward(batch["source"], batch["target"]), model.forward(batch["source"], batch["target"])));
    model.eval();
    CHECK(at::equal(model.forward(batch["source"], batch["target"]), model.forward(batch["source"], batch["target"])));
  }
}

TEST_CASE("a Seq2Seq names tokens that do not fit") {
  Seq2Seq model(tiny());
  const Batch batch = reversals(2, 4);
  const Tensor &source = batch["source"], &target = batch["target"];
  const auto step = [&](const Tensor& from, const Tensor& to) {
    return message_of<DataError>([&] {
      model.training_step(Batch({Batch::Entry{"source", from}, Batch::Entry{"target", to}}), 0);
    });
  };
  CHECK_THAT(step(source + 7, target),
             ContainsSubstring("vocabulary = 7); got") && ContainsSubstring("data.vocabulary"));
  CHECK_THAT(step(source, at::full({2, 4}, -3, at::kLong)), ContainsSubstring("vocabulary = 7); got -3"));
  Tensor late = target.clone();
  late.select(1, 3).fill_(7);  // the last token is not an input
  CHECK_THAT(step(source, late), ContainsSubstring("vocabulary = 7); got 7"));
  CHECK_THAT(step(source.to(at::kFloat), target),
             ContainsSubstring("'source' must be int64 of shape [N, T]; got Float of shape [2, 4]"));
  CHECK_THAT(step(source, target[0]),
             ContainsSubstring("'target' must be int64 of shape [N, T]; got Long of shape [4]"));
  CHECK_THAT(message_of<DataError>([&] { model.decode(source + 9, 2); }), ContainsSubstring("vocabulary = 7); got"));
}

}  // namespace seq2seq_test
