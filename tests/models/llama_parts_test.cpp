// The options that give a GPT the parts of Llama.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <set>

#include "fulgur/core/state/rng.h"
#include "fulgur/models/gpt.h"
#include "fulgur/nn/norm_layers.h"
#include "fulgur/trainer/yaml.h"
#include "models/formula.h"
#include "support/expect_error.h"

namespace llama_parts_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

GPT::Options llama() {
  GPT::Options options{.vocab_size = 13, .block_size = 8, .n_layer = 2, .n_head = 4, .n_embd = 24, .bias = false};
  options.positions = GptPositions::rotary;
  options.norm = GptNormKind::rms;
  options.mlp = GptMlpKind::swiglu;
  options.n_kv_head = int64_t{2};
  options.tie_weights = false;
  return options;
}

Tensor logits_of(const GPT::Options& options) {
  GPT model(options);
  test::fill_by_formula(model);
  model.eval();
  const at::NoGradGuard no_grad;
  return model.forward(at::arange(16, at::kLong).square().remainder(13).view({2, 8}));
}

std::map<std::string, std::vector<int64_t>> shapes_of(const GPT::Options& options) {
  GPT model(options);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, value] : test::sorted_parameters(model)) shapes.emplace(name, value.sizes().vec());
  return shapes;
}

}  // namespace

TEST_CASE("a GPT with Llama's parts has their parameters") {
  const auto shapes = shapes_of(llama());
  // Two blocks of six weights, the embedding, the last norm and the output layer; no positions, no biases.
  CHECK(shapes.size() == 2 * 6 + 3);
  using Shape = std::vector<int64_t>;
  CHECK(shapes.at("lm_head.weight") == Shape{13, 24});
  CHECK(shapes.at("transformer.wte.weight") == Shape{13, 24});
  CHECK(shapes.at("transformer.ln_f.weight") == Shape{24});
  CHECK(shapes.at("transformer.h.1.attn.c_attn.weight") == Shape{24 + 2 * 12, 24});
  CHECK(shapes.at("transformer.h.1.mlp.c_fc.weight") == Shape{2 * 64, 24});  // 8/3 · 24 = 64
  CHECK(shapes.at("transformer.h.1.mlp.c_proj.weight") == Shape{24, 64});
  GPT::Options options = llama();
  options.mlp_hidden = int64_t{5};
  CHECK(shapes_of(options).at("transformer.h.0.mlp.c_fc.weight") == Shape{10, 24});
  options.mlp = GptMlpKind::gelu;
  CHECK(shapes_of(options).at("transformer.h.0.mlp.c_fc.weight") == Shape{5, 24});
  options.bias = true;
  const auto with_biases = shapes_of(options);
  CHECK(with_biases.at("transformer.h.0.attn.c_attn.bias") == Shape{48});
  CHECK_FALSE(with_biases.contains("transformer.h.0.ln_1.bias"));
  options.tie_weights = true;
  CHECK(shapes_of(options).size() == with_biases.size() - 1);
}

TEST_CASE("each option of Llama's parts changes what a GPT computes") {
  const Tensor plain = logits_of(llama());
  const auto changed = [&](auto change) {
    GPT::Options options = llama();
    change(options);
    return !at::allclose(logits_of(options), plain, 1e-3, 1e-3);
  };
  CHECK(changed([](GPT::Options& o) { o.positions = GptPositions::learned; }));
  CHECK(changed([](GPT::Options& o) { o.rope_theta = 10.0; }));
  CHECK(changed([](GPT::Options& o) { o.norm = GptNormKind::layer; }));
  CHECK(changed([](GPT::Options& o) { o.norm_eps = 1.0; }));
  CHECK(changed([](GPT::Options& o) { o.mlp = GptMlpKind::gelu; }));
  CHECK(changed([](GPT::Options& o) { o.n_kv_head = int64_t{1}; }));
  CHECK_FALSE(changed([](GPT::Options& o) { o.rope_theta = 10000.0; }));
  // Also of the norms of GPT-2.
  const GPT::Options gpt2{.vocab_size = 13, .block_size = 8, .n_layer = 2, .n_head = 4, .n_embd = 24};
  GPT::Options other = gpt2;
  other.norm_eps = 1.0;
  CHECK_FALSE(at::allclose(logits_of(gpt2), logits_of(other), 1e-3, 1e-3));
}

TEST_CASE("as many heads of keys as of queries are the same as no option") {
  GPT::Options options = llama();
  options.n_kv_head = {};
  const Tensor all = logits_of(options);
  options.n_kv_head = int64_t{4};
  CHECK(at::equal(logits_of(options), all));
}

TEST_CASE("a later token does not change what a GPT with rotary positions predicts for earlier ones") {
  GPT model(llama());
  test::fill_by_formula(model);
  const Tensor tokens = at::arange(8, at::kLong).view({1, 8});
  Tensor changed = tokens.clone();
  changed.select(1, 5).fill_(1);
  const at::NoGradGuard no_grad;
  const Tensor a = model.forward(tokens), b = model.forward(changed);
  CHECK(at::allclose(a.narrow(1, 0, 5), b.narrow(1, 0, 5), 0, 1e-12));
  CHECK_FALSE(at::allclose(a.narrow(1, 5, 3), b.narrow(1, 5, 3), 0, 1e-3));
  CHECK(at::allclose(model.forward(tokens.narrow(1, 0, 3)), a.narrow(1, 0, 3), 1e-10, 1e-12));
}

TEST_CASE("activation_checkpointing gives the same bits with Llama's parts") {
  const auto gradients = [](const std::string& how) {
    GPT::Options options = llama();
    options.dropout = 0.3;
    options.activation_checkpointing = how;
    seed_everything(3);
    GPT model(options);
    const Tensor tokens = at::randint(13, {4, 9}, at::kLong);
    model.training_step(Batch({tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8)}), 0).loss.backward();
    std::vector<Tensor> all;
    for (const auto& parameter : unique_parameters(model)) all.push_back(parameter.value.grad().clone());
    return all;
  };
  const auto plain = gradients("none");
  for (const char* how : {"all", "every_2"}) {
    const auto checkpointed = gradients(how);
    REQUIRE(plain.size() == checkpointed.size());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(plain[i], checkpointed[i]));
  }
}

TEST_CASE("weights of Llama's parts begin like GPT-2's, and the norms are known to half precisions") {
  seed_everything(1);
  GPT::Options options = llama();
  options.vocab_size = 300;
  options.n_embd = 64;
  GPT model(options);
  const auto parameters = model.named_parameters();
  CHECK(std::abs(parameters["lm_head.weight"].std().item<double>() - 0.02) < 0.001);
  CHECK(std::abs(parameters["transformer.h.0.mlp.c_fc.weight"].std().item<double>() - 0.02) < 0.001);
  CHECK(std::abs(parameters["transformer.h.0.mlp.c_proj.weight"].std().item<double>() - 0.01) < 0.001);
  CHECK(parameters["transformer.h.1.ln_2.weight"].eq(1).all().item<bool>());
  CHECK(nn::norm_layers(model).size() == 2 * 2 + 1);
}

TEST_CASE("a GPT with Llama's parts computes in bfloat16, with norms in float32 too") {
  GPT model(llama());
  test::fill_by_formula(model);
  const Tensor tokens = at::arange(16, at::kLong).remainder(13).view({2, 8});
  const at::NoGradGuard no_grad;
  const Tensor exact = model.forward(tokens);
  convert_floating(model, at::kBFloat16);
  const Tensor half = model.forward(tokens);
  CHECK(half.scalar_type() == at::kBFloat16);
  CHECK((half.to(at::kDouble) - exact).norm().item<double>() < 0.05 * exact.norm().item<double>());
  for (const auto& norm : nn::norm_layers(model)) convert_floating(*norm.module, at::kFloat);
  const Tensor kept = model.forward(tokens);
  CHECK(kept.scalar_type() == at::kBFloat16);
  CHECK((kept.to(at::kDouble) - exact).norm().item<double>() < 0.05 * exact.norm().item<double>());
}

TEST_CASE("a GPT names parts that do not fit together") {
  const auto message = [](auto change) {
    GPT::Options options = llama();
    change(options);
    return message_of<ConfigError>([&] { GPT model(options); });
  };
  CHECK_THAT(message([](GPT::Options& o) { o.n_kv_head = int64_t{3}; }), ContainsSubstring("n_head 4 and n_kv_head 3"));
  CHECK_THAT(message([](GPT::Options& o) { o.n_embd = 12; }), ContainsSubstring("even size"));
  CHECK_THAT(message([](GPT::Options& o) { o.activation = GptActivation::gelu_tanh; }),
             ContainsSubstring("mlp is swiglu"));
  CHECK_THAT(message([](GPT::Options& o) {
               o.positions = GptPositions::learned;
               o.rope_theta = 1e4;
             }),
             ContainsSubstring("rope_theta"));
  CHECK_THAT(message([](GPT::Options& o) { o.norm_eps = 0; }), ContainsSubstring("norm_eps"));
  CHECK_THAT(message([](GPT::Options& o) { o.generate.top_p = 2; }), ContainsSubstring("top_p"));
}

TEST_CASE("a config gives a GPT Llama's parts and generation") {
  Spec<LightningModule> spec;
  Problems problems;
  const std::string yaml =
      "{class_path: GPT, init_args: {vocab_size: 13, block_size: 8, n_layer: 1, n_head: 4, n_kv_head: 2, n_embd: 24, "
      "bias: false, positions: rotary, rope_theta: 500000, norm: rms, norm_eps: 1.0e-6, mlp: swiglu, mlp_hidden: 20, "
      "tie_weights: false, generate: {max_new_tokens: 2, temperature: 0.5, top_k: 3, top_p: 0.9, seed: 7, "
      "stop_tokens: [1]}}}";
  spec.read(parse_yaml(yaml, "test", problems), problems, "model");
  problems.throw_if_any();
  const auto module = spec.create();
  const auto& options = dynamic_cast<GPT&>(*module).options();
  CHECK(options.rope_theta.value == 500000.0);
  CHECK(options.mlp_hidden.value == 20);
  CHECK_FALSE(options.tie_weights);
  CHECK(options.generate.top_k == 3);
  CHECK(options.generate.stop_tokens == std::vector<int64_t>{1});
}

}  // namespace llama_parts_test
