#include "fulgur/models/generate.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/state/rng.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/models/gpt.h"
#include "fulgur/text/prompts_data_module.h"
#include "fulgur/trainer/trainer.h"
#include "language/next_token.h"
#include "models/formula.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "trainer/boring.h"

namespace generate_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

constexpr int64_t kVocab = 17, kBlock = 10;

// Learned or rotary positions, with or without shared keys, in float64.
std::vector<GPT::Options> shapes() {
  std::vector<GPT::Options> all;
  for (const GptPositions positions : {GptPositions::learned, GptPositions::rotary})
    for (const int64_t n_kv_head : {int64_t{4}, int64_t{2}, int64_t{1}}) {
      GPT::Options options{.vocab_size = kVocab, .block_size = kBlock, .n_layer = 2, .n_head = 4, .n_embd = 24};
      options.positions = positions;
      options.n_kv_head = n_kv_head;
      if (positions == GptPositions::rotary) {
        options.norm = GptNormKind::rms;
        options.mlp = GptMlpKind::swiglu;
      }
      all.push_back(options);
    }
  return all;
}

std::shared_ptr<GPT> filled(const GPT::Options& options) {
  auto model = std::make_shared<GPT>(options);
  test::fill_by_formula(*model);
  return model;
}

Tensor some_tokens(int64_t rows, int64_t length) {
  return at::arange(rows * length, at::kLong).square().remainder(kVocab).view({rows, length});
}

// x[i][places[i]] for each row i.
Tensor picked(const Tensor& x, const Tensor& places) {
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < places.size(0); ++i) rows.push_back(x[i][places[i].item<int64_t>()]);
  return at::stack(rows);
}

// One text that grows, without a cache: what `generate` must give.
std::vector<int64_t> recomputed(GPT& model, const Tensor& prompt, const GenerateOptions& options, int64_t index) {
  const at::NoGradGuard no_grad;
  Tensor text = prompt.clone();
  std::vector<int64_t> added;
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    const int64_t seen = std::min(text.size(0), kBlock);
    const Tensor logits = model.forward(text.narrow(0, text.size(0) - seen, seen).unsqueeze(0)).select(1, seen - 1);
    const double draw =
        fulgur::detail::draw_of(options.seed, mix_bits(static_cast<uint64_t>(index)), prompt.size(0) + step);
    const Tensor next = fulgur::detail::next_token(logits, at::full({1}, draw, at::kDouble), options);
    added.push_back(next.item<int64_t>());
    text = at::cat({text, next});
  }
  return added;
}

}  // namespace

TEST_CASE("a GPT with a cache computes the logits of the whole sequence, for rows of different lengths") {
  const at::NoGradGuard no_grad;
  for (const GPT::Options& options : shapes()) {
    CAPTURE(static_cast<int>(options.positions), *options.n_kv_head.value);
    const auto model = filled(options);
    model->eval();
    const Tensor tokens = some_tokens(3, kBlock);
    const Tensor whole = model->forward(tokens);
    const Tensor lengths = at::tensor({5, 1, 3}, at::kLong);
    GptCache cache(kBlock);
    Tensor logits = model->begin(tokens.narrow(1, 0, 5), lengths, cache);
    for (int64_t step = 0;; ++step) {
      const Tensor last = lengths - 1 + step;
      CHECK(at::allclose(logits, picked(whole, last), 1e-10, 1e-12));
      if (step == 5) break;
      const Tensor place = lengths + step;
      logits = model->extend(picked(tokens, place), place, 6 + step, cache);
    }
  }
}

TEST_CASE("generated tokens are those of a forward over the whole text, alone or in a batch, beyond block_size too") {
  for (const GPT::Options& shape : shapes()) {
    CAPTURE(static_cast<int>(shape.positions), *shape.n_kv_head.value);
    const auto model = filled(shape);
    model->train();
    // Prompts of 12, 3, 10 and 7 tokens; the model sees 10.
    const std::vector<int64_t> lengths = {12, 3, 10, 7};
    const Tensor tokens = some_tokens(4, 12), indices = at::tensor({4, 9, 2, 7}, at::kLong);
    for (const double temperature : {0.0, 1.3}) {
      const GenerateOptions how{.max_new_tokens = 9, .temperature = temperature, .top_p = 0.95, .seed = 5};
      const Prompts prompts{.tokens = tokens, .lengths = at::tensor(lengths, at::kLong), .indices = indices};
      const Tensor generated = generate(*model, prompts, how);
      CHECK(model->is_training());
      REQUIRE(generated.sizes() == at::IntArrayRef({4, 9}));
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t length = lengths[static_cast<size_t>(i)];
        const Tensor prompt = tokens[i].narrow(0, 0, length);
        const auto expected = recomputed(*model, prompt, how, indices[i].item<int64_t>());
        CHECK(at::equal(generated[i], at::tensor(expected, at::kLong)));
        const Prompts alone{.tokens = prompt.unsqueeze(0), .lengths = {}, .indices = indices.narrow(0, i, 1)};
        CHECK(at::equal(generate(*model, alone, how)[0], generated[i]));
      }
    }
  }
}

TEST_CASE("tokens depend on the seed, the prompt's index and the position; without indices, on the prompt") {
  const auto model = filled(shapes().front());
  const Tensor tokens = some_tokens(1, 4).expand({3, 4});
  const auto how = [](int64_t seed) { return GenerateOptions{.max_new_tokens = 6, .temperature = 3, .seed = seed}; };
  const Tensor same = generate(*model, tokens, how(1));
  CHECK(at::equal(same[0], same[1]));
  CHECK(at::equal(generate(*model, tokens, how(1)), same));
  CHECK_FALSE(at::equal(generate(*model, tokens, how(2)), same));
  const Prompts told{.tokens = tokens, .lengths = {}, .indices = at::arange(3, at::kLong)};
  const Tensor different = generate(*model, told, how(1));
  CHECK_FALSE(at::equal(different[0], different[1]));
  CHECK_FALSE(at::equal(different[1], different[2]));
  // The generators of LibTorch take no part.
  seed_everything(3);
  const Tensor a = at::randint(1000, {4}, at::kLong);
  seed_everything(3);
  generate(*model, tokens, how(1));
  CHECK(at::equal(at::randint(1000, {4}, at::kLong), a));
}

TEST_CASE("a stop token ends its row, and -1 follows it") {
  const auto model = filled(shapes().front());
  const Tensor tokens = some_tokens(4, 4), indices = at::arange(4, at::kLong);
  const Prompts prompts{.tokens = tokens, .lengths = {}, .indices = indices};
  GenerateOptions how{.max_new_tokens = 6, .temperature = 3, .seed = 1};
  const Tensor free = generate(*model, prompts, how);
  const int64_t stop = free[0][2].item<int64_t>();
  how.stop_tokens = {stop};
  const Tensor stopped = generate(*model, prompts, how);
  for (int64_t i = 0; i < 4; ++i) {
    bool ended = false;
    for (int64_t k = 0; k < 6; ++k) {
      CHECK(stopped[i][k].item<int64_t>() == (ended ? -1 : free[i][k].item<int64_t>()));
      ended = ended || free[i][k].item<int64_t>() == stop;
    }
  }
  CHECK(stopped[0][5].item<int64_t>() == -1);
}

TEST_CASE("next tokens have the probabilities from which transformers draws") {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "language.json");
  const auto baseline = nlohmann::json::parse(file);
  constexpr int64_t kDraws = 20000;
  const Tensor draws = (at::arange(kDraws, at::kDouble) + 0.5) / kDraws;
  const Tensor logits = (3 * test::by_formula({1, 13}, 7)).expand({kDraws, 13});
  for (const auto& choice : baseline.at("choices")) {
    CAPTURE(choice.dump());
    const GenerateOptions options{
        .temperature = choice.at("temperature"), .top_k = choice.at("top_k"), .top_p = choice.at("top_p")};
    const Tensor tokens = fulgur::detail::next_token(logits, draws, options);
    const Tensor shares = at::bincount(tokens, {}, 13).to(at::kDouble) / kDraws;
    const auto expected = choice.at("probabilities").get<std::vector<double>>();
    // Each share is that of an interval, counted on a grid.
    CHECK(at::allclose(shares, at::tensor(expected, at::kDouble), 0, 1.001 / kDraws));
  }
}

TEST_CASE("next tokens at the ends: ties, a top_p of 0, tiny temperatures, and numbers that are not finite") {
  const auto chosen = [](const Tensor& logits, double draw, const GenerateOptions& options) {
    return fulgur::detail::next_token(logits.unsqueeze(0), at::full({1}, draw, at::kDouble), options).item<int64_t>();
  };
  const Tensor equal = at::zeros({4}, at::kFloat), rising = at::arange(4, at::kFloat);
  CHECK(chosen(equal, 0.0, {}) == 0);
  CHECK(chosen(equal, 0.26, {}) == 1);
  CHECK(chosen(equal, 1 - 0x1p-53, {}) == 3);
  CHECK(chosen(rising, 0.999, {.top_p = 0}) == 3);
  CHECK(chosen(rising, 0.999, {.temperature = 1e-300}) == 3);
  CHECK(chosen(rising, 1 - 0x1p-53, {.top_k = 2}) == 2);
  CHECK(chosen(rising, 0.999, {.temperature = 0}) == 3);
  const int64_t any = chosen(at::full({4}, NAN), 0.5, {});
  CHECK((any >= 0 && any < 4));
}

TEST_CASE("predict_step of a GPT generates from the tokens, mask and index of a batch") {
  GPT::Options options = shapes().front();
  options.generate = {.max_new_tokens = 3, .temperature = 2, .seed = 4};
  const auto model = filled(options);
  const Tensor tokens = some_tokens(2, 5), index = at::tensor({11, 3}, at::kLong);
  const Tensor mask = at::arange(5, at::kLong).unsqueeze(0).lt(at::tensor({5, 2}, at::kLong).unsqueeze(1));
  const Outputs outputs = model->predict_step(Batch{{"tokens", tokens}, {"mask", mask}, {"index", index}}, 0, 0);
  CHECK(outputs.size() == 1);
  const Prompts prompts{.tokens = tokens, .lengths = at::tensor({5, 2}, at::kLong), .indices = index};
  CHECK(at::equal(outputs["generated"], generate(*model, prompts, options.generate)));
  // Entries that only have tokens are whole prompts.
  CHECK(at::equal(model->predict_step(Batch({tokens, tokens}), 0, 0)["generated"],
                  generate(*model, tokens, options.generate)));
}

TEST_CASE("trainer predict continues prompts of a file, the same in batches of any size") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "prompts.txt", "the time\nof the first, they\na\n");
  GPT::Options options = shapes().back();
  PromptsDataModule::Options prompts;
  prompts.path = folder / "prompts.txt";
  prompts.tokenizer = FULGUR_TOKENIZER_FIXTURES "/bpe.json";
  prompts.samples_per_prompt = 2;
  options.vocab_size = read_tokenizer(*prompts.tokenizer)->vocab_size();
  options.block_size = 40;
  options.generate = {.max_new_tokens = 5, .temperature = 1.5, .top_k = 20, .seed = 8};
  const auto model = filled(options);
  std::vector<Tensor> generated;
  for (const int64_t batch_size : {int64_t{1}, int64_t{4}, int64_t{16}}) {
    prompts.batch_size = batch_size;
    TrainerOptions quiet = test::quiet(folder);
    quiet.precision = Spec<Precision>("64-true");
    const PredictReport report = Trainer(quiet).predict(model, std::make_shared<PromptsDataModule>(prompts));
    REQUIRE(report.loaders.size() == 1);
    generated.push_back(report.loaders[0]["generated"]);
    REQUIRE(generated.back().sizes() == at::IntArrayRef({6, 5}));
    CHECK(at::equal(generated.back(), generated.front()));
  }
  CHECK_FALSE(at::equal(generated[0][0], generated[0][1]));
  CHECK((generated[0].ge(0).all().item<bool>() && generated[0].lt(options.vocab_size).all().item<bool>()));
}

TEST_CASE("generate names options and prompts that do not fit") {
  const auto model = filled(shapes().front());
  const Tensor tokens = some_tokens(2, 4);
  const GenerateOptions two{.max_new_tokens = 2};
  CHECK_THAT(message_of<ConfigError>([&] { generate(*model, tokens, {.max_new_tokens = 2, .temperature = -1}); }),
             ContainsSubstring("temperature"));
  CHECK_THAT(message_of<ConfigError>([&] { generate(*model, tokens, {.max_new_tokens = 2, .top_p = 1.5}); }),
             ContainsSubstring("top_p"));
  CHECK_THAT(message_of<DataError>([&] { generate(*model, tokens.to(at::kFloat), two); }), ContainsSubstring("int64"));
  CHECK_THAT(message_of<DataError>([&] { generate(*model, tokens.narrow(1, 0, 0), two); }),
             ContainsSubstring("at least one token"));
  CHECK_THAT(message_of<DataError>([&] { generate(*model, tokens + kVocab, two); }),
             ContainsSubstring("vocab_size = 17"));
  for (const int64_t length : {int64_t{0}, int64_t{5}})
    CHECK_THAT(
        message_of<DataError>([&] {
          generate(*model, Prompts{.tokens = tokens, .lengths = at::tensor({int64_t{4}, length}, at::kLong)}, two);
        }),
        ContainsSubstring("prompt 1 of the batch has " + std::to_string(length)));
  CHECK_THAT(message_of<DataError>([&] {
               generate(*model, Prompts{.tokens = tokens, .lengths = {}, .indices = at::arange(3, at::kLong)}, two);
             }),
             ContainsSubstring("indices") && ContainsSubstring("[3]"));
  CHECK(generate(*model, tokens, {}).sizes() == at::IntArrayRef({2, 0}));
  CHECK(generate(*model, tokens.narrow(0, 0, 0), two).sizes() == at::IntArrayRef({0, 2}));
}

}  // namespace generate_test
