// Hugging Face's Llama and BERT, with the same weights: the same logits, losses and gradients.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/checkpoint/map_keys.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/models/bert_classifier.h"
#include "fulgur/models/gpt.h"
#include "models/formula.h"
#include "models/training.h"
#include "support/expect_error.h"

namespace language_parity_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;
using test::message_of;

namespace {

const json& language_baseline() {
  static const json baseline = [] {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "language.json");
    return json::parse(file);
  }();
  return baseline;
}

Tensor doubles(const json& list) { return at::tensor(list.get<std::vector<double>>(), at::kDouble); }

// The tensors of a file of Hugging Face.
NamedTensors file_of(const json& shapes) {
  NamedTensors tensors;
  for (const auto& [name, shape] : shapes.items())
    tensors.emplace_back(
        name, test::weight_by_formula(name, shape.get<std::vector<int64_t>>(), static_cast<int64_t>(tensors.size())));
  return tensors;
}

void load(LightningModule& model, const NamedTensors& file, const std::string& map) {
  const auto keys = Spec<KeyMap>(map).create();
  const LoadOptions convert{.strict = true, .key_prefixes = {}, .convert_formats = true};
  CHECK(load_module_state(model, map_keys(file, *keys, map), convert).loaded.size() == module_state(model).size());
}

// The norms of the gradients of a first step, of the parameters here that the gradients in Python belong to.
void check_gradients(const LightningModule& model, const json& squares, const std::string& map) {
  NamedTensors theirs;
  for (const auto& [name, value] : squares.items())
    theirs.emplace_back(name, at::tensor({value.get<double>()}, at::kDouble));
  const auto keys = Spec<KeyMap>(map).create();
  const NamedTensors expected = map_keys(theirs, *keys, map);
  const auto parameters = model.named_parameters();
  CHECK(expected.size() == unique_parameters(model).size());
  for (const auto& [name, square] : expected) {
    CAPTURE(name);
    const Tensor* const parameter = parameters.find(name);
    REQUIRE(parameter);
    CHECK(at::allclose(parameter->grad().square().sum(), square.sum(), 1e-8, 1e-16));
  }
}

void check_training(LightningModule& model, const Batch& batch, const json& training, const std::string& map) {
  model.training_step(batch, 0).loss.backward();
  check_gradients(model, training.at("gradient_squares"), map);
  const std::vector<double> losses = test::descend(model, batch, 3, training.at("lr"));
  CHECK(at::allclose(at::tensor(losses, at::kDouble), doubles(training.at("losses")), 1e-9, 1e-9));
}

GPT::Options llama(const json& recorded) {
  GPT::Options options{.vocab_size = 11, .block_size = 12, .n_layer = 2, .n_head = 4, .n_embd = 24, .bias = false};
  options.positions = GptPositions::rotary;
  options.rope_theta = recorded.at("theta").get<double>();
  options.norm = GptNormKind::rms;
  options.mlp = GptMlpKind::swiglu;
  options.mlp_hidden = int64_t{20};
  options.n_kv_head = recorded.at("n_kv_head").get<int64_t>();
  options.tie_weights = recorded.at("tied");
  return options;
}

Tensor llama_tokens() { return at::arange(36, at::kLong).square().remainder(11).view({3, 12}); }

struct Texts {
  Tensor tokens, mask, types, labels;
};

Texts bert_texts(bool with_types) {
  const Tensor lengths = at::tensor({7, 1, 4, 5}, at::kLong);
  const Tensor mask = at::arange(7, at::kLong).unsqueeze(0).lt(lengths.unsqueeze(1));
  const Tensor places = at::arange(28, at::kLong).view({4, 7});
  return {.tokens = (places.square().remainder(16) + 1) * mask,
          .mask = mask,
          .types = with_types ? places.remainder(7).gt(2).to(at::kLong) : Tensor(),
          .labels = at::tensor({0, 2, 1, 2}, at::kLong)};
}

BertClassifier::Options small_bert() {
  return {.vocab_size = 17,
          .max_length = 9,
          .num_layers = 2,
          .num_heads = 3,
          .hidden_dim = 24,
          .mlp_dim = 20,
          .num_classes = 3,
          .dropout = 0};
}

}  // namespace

TEST_CASE("a GPT with Llama's parts equals Hugging Face's LlamaForCausalLM: logits, gradients, losses of three steps") {
  REQUIRE(language_baseline().at("llama").size() == 2);
  for (const auto& recorded : language_baseline().at("llama")) {
    CAPTURE(recorded.at("n_kv_head").get<int64_t>());
    const NamedTensors file = file_of(recorded.at("shapes"));
    const Tensor tokens = llama_tokens();
    const Tensor inputs = tokens.narrow(1, 0, 9), targets = tokens.narrow(1, 1, 9);
    GPT single(llama(recorded));
    load(single, file, "hf_llama");
    {
      const at::NoGradGuard no_grad;
      CHECK(at::allclose(single.forward(inputs).to(at::kDouble).reshape(-1), doubles(recorded.at("logits_float32")),
                         1e-5, 1e-5));
    }
    GPT model(llama(recorded));
    convert_floating(model, at::kDouble);
    load(model, file, "hf_llama");
    CHECK(at::allclose(model.forward(inputs).reshape(-1), doubles(recorded.at("logits")), 1e-9, 1e-9));
    check_training(model, Batch({inputs, targets}), recorded.at("training"), "hf_llama");
  }
}

TEST_CASE("a GPT with Llama's parts generates the tokens that transformers generates") {
  for (const auto& recorded : language_baseline().at("llama")) {
    GPT model(llama(recorded));
    convert_floating(model, at::kDouble);
    load(model, file_of(recorded.at("shapes")), "hf_llama");
    // Prompts of 4, 1 and 6 tokens in one batch.
    const Tensor lengths = at::tensor({4, 1, 6}, at::kLong);
    const Prompts prompts{.tokens = llama_tokens().narrow(1, 0, 6), .lengths = lengths};
    const Tensor generated = generate(model, prompts, {.max_new_tokens = 6, .temperature = 0});
    for (int64_t i = 0; i < 3; ++i) {
      const auto expected = recorded.at("generated").at(static_cast<size_t>(i)).get<std::vector<int64_t>>();
      CHECK(at::equal(generated[i], at::tensor(expected, at::kLong)));
    }
  }
}

TEST_CASE("a BertClassifier equals Hugging Face's BertForSequenceClassification, with padding and token types") {
  REQUIRE(language_baseline().at("bert").size() == 2);
  for (const auto& recorded : language_baseline().at("bert")) {
    const bool with_types = recorded.at("with_types");
    CAPTURE(with_types);
    const NamedTensors file = file_of(recorded.at("shapes"));
    const auto [tokens, mask, types, labels] = bert_texts(with_types);
    BertClassifier single(small_bert());
    load(single, file, "hf_bert");
    {
      const at::NoGradGuard no_grad;
      CHECK(at::allclose(single.forward(tokens, mask, types).to(at::kDouble).reshape(-1),
                         doubles(recorded.at("logits_float32")), 1e-5, 1e-5));
    }
    BertClassifier model(small_bert());
    convert_floating(model, at::kDouble);
    load(model, file, "hf_bert");
    CHECK(at::allclose(model.forward(tokens, mask, types).reshape(-1), doubles(recorded.at("logits")), 1e-9, 1e-9));
    Batch batch{{"tokens", tokens}, {"mask", mask}, {"label", labels}};
    if (with_types) batch.add("token_types", types);
    check_training(model, batch, recorded.at("training"), "hf_bert");
  }
}

TEST_CASE("key maps of Llama and BERT know old names, leave out what has no place, and need all parts") {
  const auto& recorded = language_baseline().at("llama").at(0);
  NamedTensors file = file_of(recorded.at("shapes"));
  file.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::arange(3, at::kFloat));
  GPT model(llama(recorded));
  load(model, file, "hf_llama");
  std::erase_if(file, [](const auto& item) { return item.first.ends_with("layers.1.mlp.up_proj.weight"); });
  const auto llama_keys = Spec<KeyMap>("hf_llama").create();
  CHECK_THAT(message_of<CheckpointError>([&] { map_keys(file, *llama_keys, "hf_llama"); }),
             ContainsSubstring("part 2 of 2 of transformer.h.1.mlp.c_fc.weight"));

  NamedTensors old;
  for (const auto& [name, tensor] : file_of(language_baseline().at("bert").at(0).at("shapes"))) {
    std::string renamed = name;
    const auto replace = [&](const std::string& from, const std::string& to) {
      if (const size_t found = renamed.find(from); found != std::string::npos) renamed.replace(found, from.size(), to);
    };
    replace("LayerNorm.weight", "LayerNorm.gamma");
    replace("LayerNorm.bias", "LayerNorm.beta");
    old.emplace_back(renamed, tensor);
  }
  old.emplace_back("bert.embeddings.position_ids", at::arange(9, at::kLong));
  old.emplace_back("cls.predictions.bias", at::arange(17, at::kFloat));
  BertClassifier bert(small_bert());
  load(bert, old, "hf_bert");
}

}  // namespace language_parity_test
