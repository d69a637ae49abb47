#include "fulgur/models/gpt.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "fulgur/core/state/rng.h"
#include "fulgur/nn/norm_layers.h"
#include "models/training.h"
#include "support/expect_error.h"
#include "support/live_memory.h"

namespace gpt_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

GPT::Options tiny() { return {.vocab_size = 13, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16}; }

Batch windows(int64_t samples, const GPT::Options& options) {
  const Tensor tokens = at::randint(options.vocab_size, {samples, options.block_size + 1}, at::kLong);
  return Batch({Batch::Entry{"input", tokens.narrow(1, 0, options.block_size)},
                Batch::Entry{"target", tokens.narrow(1, 1, options.block_size)}});
}

Tensor values(const nlohmann::json& list) { return at::tensor(list.get<std::vector<double>>(), at::kDouble); }

}  // namespace

TEST_CASE("a GPT gives what the same network of torch's modules gives in Python") {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "gpt.json");
  const auto baseline = nlohmann::json::parse(file);
  for (const auto& expected : baseline.at("cases")) {
    GPT model({.vocab_size = baseline.at("vocab_size"),
               .block_size = baseline.at("block_size"),
               .n_layer = baseline.at("n_layer"),
               .n_head = baseline.at("n_head"),
               .n_embd = baseline.at("n_embd"),
               .bias = expected.at("bias")});
    convert_floating(model, at::kDouble);
    std::map<std::string, Tensor> parameters;
    for (const auto& [name, value] : unique_parameters(model))
      parameters.emplace(name == "lm_head.weight" ? "transformer.wte.weight" : name, value);
    std::vector<std::string> names;
    for (const auto& [name, value] : parameters) {
      const at::NoGradGuard no_grad;
      const Tensor sines =
          0.3 * at::sin(static_cast<double>(names.size()) + 0.7 * at::arange(value.numel(), at::kDouble));
      value.copy_(sines.view(value.sizes()) +
                  (name.find(".ln_") != std::string::npos && name.ends_with("weight") ? 1 : 0));
      names.push_back(name);
    }
    REQUIRE((names == expected.at("names").get<std::vector<std::string>>()));
    const int64_t samples = baseline.at("batch"), length = baseline.at("block_size");
    const Tensor tokens = at::arange(samples * (length + 1), at::kLong)
                              .square()
                              .remainder(baseline.at("vocab_size").get<int64_t>())
                              .view({samples, length + 1});
    const Tensor input = tokens.narrow(1, 0, length);
    CHECK(at::allclose(model.forward(input).reshape(-1), values(expected.at("logits")), 1e-12, 1e-12));
    const Tensor loss = model.training_step(Batch({input, tokens.narrow(1, 1, length)}), 0).loss;
    CHECK(std::abs(loss.item<double>() - expected.at("loss").get<double>()) < 1e-12);
    loss.backward();
    std::vector<double> norms;
    for (const auto& [name, value] : parameters) norms.push_back(value.grad().norm().item<double>());
    CHECK(at::allclose(values(norms), values(expected.at("gradient_norms")), 1e-10, 1e-12));
  }
}

TEST_CASE("a later token does not change what a GPT predicts for earlier ones") {
  GPT model(tiny());
  const Tensor tokens = at::randint(13, {2, 8}, at::kLong);
  Tensor changed = tokens.clone();
  changed.select(1, 5).add_(1).remainder_(13);
  const Tensor a = model.forward(tokens), b = model.forward(changed);
  CHECK(at::allclose(a.narrow(1, 0, 5), b.narrow(1, 0, 5), 0, 1e-6));
  CHECK_FALSE(at::allclose(a.narrow(1, 5, 3), b.narrow(1, 5, 3), 0, 1e-3));
  // A shorter sequence is the beginning of a longer one.
  CHECK(at::allclose(model.forward(tokens.narrow(1, 0, 3)), a.narrow(1, 0, 3), 1e-5, 1e-6));
}

TEST_CASE("a GPT has the parameters that its options say, the shared weight once") {
  const auto count = [](const GPT::Options& options) {
    int64_t sum = 0;
    GPT model(options);
    for (const auto& parameter : unique_parameters(model)) sum += parameter.value.numel();
    return sum;
  };
  const int64_t c = 16, embeddings = 13 * c + 8 * c, of_block = 12 * c * c + 2 * c,
                biases = (3 + 1 + 4 + 1) * c + 2 * c;
  CHECK(count(tiny()) == embeddings + 3 * (of_block + biases) + 2 * c);
  GPT::Options bare = tiny();
  bare.bias = false;
  CHECK(count(bare) == embeddings + 3 * of_block + c);
  GPT model(tiny());
  CHECK(model.named_parameters()["lm_head.weight"].is_same(model.named_parameters()["transformer.wte.weight"]));
  CHECK(model.num_tokens(windows(5, tiny())) == 40);
}

TEST_CASE("a GPT starts with GPT-2's weights") {
  seed_everything(1);
  GPT model({.vocab_size = 300, .block_size = 64, .n_layer = 8, .n_head = 4, .n_embd = 64});
  const auto parameters = model.named_parameters();
  const auto deviation = [&](const std::string& name) { return parameters[name].std().item<double>(); };
  CHECK(std::abs(deviation("transformer.wte.weight") - 0.02) < 0.001);
  CHECK(std::abs(deviation("transformer.wpe.weight") - 0.02) < 0.002);
  CHECK(std::abs(deviation("transformer.h.3.attn.c_attn.weight") - 0.02) < 0.001);
  for (const char* name : {"transformer.h.0.attn.c_proj.weight", "transformer.h.7.mlp.c_proj.weight"})
    CHECK(std::abs(deviation(name) - 0.02 / 4) < 0.0005);  // sqrt(2 * 8) = 4
  CHECK(parameters["transformer.h.2.mlp.c_fc.bias"].count_nonzero().item<int64_t>() == 0);
  CHECK(at::equal(parameters["transformer.ln_f.weight"], at::ones_like(parameters["transformer.ln_f.weight"])));
  // So the first loss is that of a guess.
  CHECK(std::abs(model.training_step(windows(4, {.vocab_size = 300, .block_size = 64}), 0).loss.item<double>() -
                 std::log(300.0)) < 0.3);
}

TEST_CASE("a GPT can overfit a few sequences") {
  seed_everything(2);
  GPT model(tiny());
  const Batch batch = windows(2, tiny());
  const auto losses = test::descend(model, batch, 400, 0.2);
  CHECK(losses.front() > 2);
  CHECK(losses.back() < 0.1);
  model.eval();
  const Outputs outputs = model.predict_step(batch, 0, 0);
  CHECK(outputs["prediction"].sizes() == batch[1].sizes());
  CHECK(outputs["prediction"].eq(batch[1]).to(at::kDouble).mean().item<double>() > 0.9);
  CHECK(outputs["probability"].max().item<double>() > 0.8);
  CHECK(outputs["probability"].min().item<double>() > 0);
}

TEST_CASE("dropout of a GPT acts in training only") {
  GPT::Options options = tiny();
  options.dropout = 0.5;
  GPT model(options);
  const Tensor tokens = windows(2, options)[0];
  CHECK_FALSE(at::equal(model.forward(tokens), model.forward(tokens)));
  model.eval();
  CHECK(at::equal(model.forward(tokens), model.forward(tokens)));
}

TEST_CASE("activation_checkpointing gives the same bits, with dropout too") {
  const auto gradients = [](const std::string& how) {
    GPT::Options options = tiny();
    options.dropout = 0.3;
    options.n_layer = 5;
    options.activation_checkpointing = how;
    seed_everything(3);
    GPT model(options);
    const Batch batch = windows(4, options);
    std::vector<Tensor> all;
    for (int step = 0; step < 2; ++step) {
      model.training_step(batch, step).loss.backward();
      for (const auto& parameter : unique_parameters(model)) all.push_back(parameter.value.grad().clone());
    }
    return all;
  };
  const auto plain = gradients("none");
  for (const char* how : {"all", "every_2", "every_3"}) {
    CAPTURE(how);
    const auto checkpointed = gradients(how);
    REQUIRE(plain.size() == checkpointed.size());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(plain[i], checkpointed[i]));
  }
}

TEST_CASE("activations of a GPT take the memory of the formula in docs/memory.md") {
  // N T positions; without dropout a block of width C and H heads keeps 16 C + 4 + H floats for each, a checkpointed
  // one C.
  constexpr int64_t kSamples = 4, kLength = 32, kWidth = 64, kHeads = 4, kLayers = 6, kVocab = 32;
  const int64_t positions = kSamples * kLength, of_float = sizeof(float);
  const int64_t block = positions * (16 * kWidth + 4 + kHeads) * of_float, input = positions * kWidth * of_float;
  struct Sizes {
    int64_t held, peak;
  };
  const auto measure = [&](const std::string& how) {
    const GPT::Options options{.vocab_size = kVocab,
                               .block_size = kLength,
                               .n_layer = kLayers,
                               .n_head = kHeads,
                               .n_embd = kWidth,
                               .activation_checkpointing = how};
    GPT model(options);
    const Batch batch = windows(kSamples, options);
    for (const auto& parameter : unique_parameters(model))
      parameter.value.mutable_grad() = at::zeros_like(parameter.value);
    const test::LiveMemory memory;
    const Tensor loss = model.training_step(batch, 0).loss;
    const int64_t held = memory.bytes();
    loss.backward();
    return Sizes{held, memory.peak()};
  };
  const Sizes none = measure("none"), all = measure("all"), every_2 = measure("every_2"), every_4 = measure("every_4");
  CHECK(none.held - all.held == kLayers * (block - input));
  CHECK(none.held - every_2.held == 3 * (block - input));  // blocks 0, 2, 4
  CHECK(none.held - every_4.held == 2 * (block - input));  // blocks 0, 4
  // What is left is the ends of the network: the sum of the embeddings is a block's input; last norm, logits, loss.
  CHECK(all.held - kLayers * input == none.held - kLayers * block);
  CHECK(all.held - kLayers * input < 4 * input);
  // In backward the activations of one block come in addition, and what its backward works with.
  CHECK(all.peak < all.held + 2 * block);
  CHECK(none.peak > kLayers * block);
}

TEST_CASE("a GPT names options and tokens that do not fit") {
  GPT::Options options = tiny();
  for (const char* how : {"some", "every_", "every_1", "every_0", "every_-2", "every_2x", ""}) {
    CAPTURE(how);
    options.activation_checkpointing = how;
    CHECK_THAT(message_of<ConfigError>([&] { GPT model(options); }),
               ContainsSubstring("none, all or every_N") && ContainsSubstring("got '" + std::string(how) + "'"));
  }
  CHECK_THAT(message_of<ConfigError>([] { GPT model({.n_head = 3, .n_embd = 16}); }),
             ContainsSubstring("n_embd 16 and n_head 3"));
  GPT model(tiny());
  const Batch batch = windows(2, tiny());
  CHECK_THAT(message_of<DataError>([&] {
               model.forward(at::randint(13, {2, 9}, at::kLong));
             }),
             ContainsSubstring("block_size = 8") && ContainsSubstring("got 9"));
  CHECK_THAT(message_of<DataError>([&] {
               model.forward(at::full({2, 4}, 13, at::kLong));
             }),
             ContainsSubstring("vocab_size = 13); got 13"));
  CHECK_THAT(message_of<DataError>([&] {
               model.training_step(Batch({batch[0], batch[1] + 13}), 0);
             }),
             ContainsSubstring("vocab_size = 13); got"));
  CHECK_THAT(message_of<DataError>([&] {
               model.training_step(Batch({batch[0], batch[1].narrow(1, 0, 3)}), 0);
             }),
             ContainsSubstring("[2, 3]"));
  CHECK_THROWS_AS(model.forward(at::ones_like(batch[0], at::kFloat)), DataError);
  // Targets of -100 are left out.
  Tensor masked = batch[1].clone();
  masked.narrow(1, 0, 4).fill_(-100);
  const Tensor logits = model.forward(batch[0]);
  CHECK(at::allclose(model.training_step(Batch({batch[0], masked}), 0).loss,
                     at::cross_entropy_loss(logits.narrow(1, 4, 4).flatten(0, 1), batch[1].narrow(1, 4, 4).reshape(-1)),
                     1e-5, 1e-6));
}

TEST_CASE("GPT: its norms are known, so that a half precision can keep them in float32 on any device") {
  const auto model = std::make_shared<GPT>(tiny());
  const auto norms = nn::norm_layers(*model);
  CHECK(norms.size() == 2 * 3 + 1);
  for (const auto& norm : norms) CHECK(norm.takes_half_input);
  GPT::Options plain = tiny();
  plain.bias = false;
  const auto without = std::make_shared<GPT>(plain);
  for (const auto& norm : nn::norm_layers(*without)) CHECK(norm.module->parameters().size() == 1);
}

}  // namespace gpt_test
