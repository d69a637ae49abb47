#include "fulgur/callbacks/sequence_length_warmup.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "fulgur/core/text/text.h"
#include "fulgur/data/text_data_module.h"
#include "fulgur/models/gpt.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "callbacks/scored.h"
#include "support/expect_error.h"
#include "support/fake_run_context.h"

namespace sequence_length_warmup_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Options = SequenceLengthWarmup::Options;

Interval length(const char* text) { return *Interval::parse(text); }

// From 8 to the full length of 32.
Options growing(const char* duration, LongSequences mode = LongSequences::truncate) {
  return {.start = 8, .duration = length(duration), .keys = {"input", "target"}, .mode = mode};
}

GPT::Options small_gpt() {
  GPT::Options options;
  options.block_size = 32;
  options.n_layer = 1;
  options.n_head = 2;
  options.n_embd = 8;
  options.dropout = 0.2;
  return options;
}

/// A GPT that notes the shapes of its training batches and the number of their tokens.
struct NotingGpt : GPT {
  NotingGpt() : GPT(small_gpt()) {}
  std::vector<std::pair<int64_t, int64_t>> shapes;
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.05}); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    CHECK(batch["input"].sizes() == batch["target"].sizes());
    CHECK(batch["input"].is_contiguous());
    shapes.emplace_back(batch.size(), batch["input"].size(1));
    return GPT::training_step(batch, batch_idx);
  }
};

struct Trained {
  std::shared_ptr<NotingGpt> module;
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  FitReport report;
  int64_t tokens = 0;
};

struct Tokens : Callback {
  int64_t seen = 0;
  void on_train_end(RunContext& run) override { seen = run.progress().tokens_seen; }
};

// Epochs of ten batches of four windows of 32 tokens.
Trained train(const Options& options, const std::function<void(TrainerOptions&)>& change = {},
              const CheckpointChoice& from = {}) {
  static TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i * i % 23);
  write_text(folder / "text.txt", text);
  TextDataModule::Options data;
  data.path = folder / "text.txt";
  data.tokens = TextDataModule::Tokens::bytes;
  data.block_size = 32;
  data.batch_size = 4;
  data.samples_per_epoch = int64_t{40};
  TrainerOptions trainer = quiet(folder);
  trainer.limit_val_batches = 0;
  if (change) change(trainer);
  Trained run;
  TrainerComponents components;
  components.seed = 3;
  components.loggers = {run.logger};
  const auto tokens = std::make_shared<Tokens>();
  components.add(std::make_shared<SequenceLengthWarmup>(options)).add(tokens);
  at::manual_seed(4);
  run.module = std::make_shared<NotingGpt>();
  run.report = Trainer(trainer, components).fit(run.module, std::make_shared<TextDataModule>(data), from);
  run.tokens = tokens->seen;
  return run;
}

std::vector<int64_t> lengths(const Trained& run) {
  std::vector<int64_t> all;
  for (const auto& [rows, own] : run.module->shapes) all.push_back(own);
  return all;
}

Batch counted(int64_t rows, int64_t full) {
  const Tensor input = at::arange(rows * full, at::kLong).view({rows, full});
  return Batch{{"input", input}, {"target", input + 1}};
}

std::string shape_error(Options options, const Batch& batch) {
  FakeRunContext run;
  SequenceLengthWarmup warmup(std::move(options));
  return message_of<ConfigError>([&] { warmup.shape_batch(run, batch); });
}

}  // namespace

TEST_CASE("SequenceLengthWarmup: the length grows in multiples of step, from start to end") {
  const SequenceLengthWarmup to_full(growing("6st"));
  CHECK(to_full.length_at(0, 32) == 8);
  CHECK(to_full.length_at(0.32, 32) == 8);
  CHECK(to_full.length_at(1.0 / 3, 32) == 16);
  CHECK(to_full.length_at(0.7, 32) == 24);
  CHECK(to_full.length_at(0.999, 32) == 24);
  CHECK(to_full.length_at(1, 32) == 32);
  CHECK(to_full.length_at(1, 30) == 30);
  CHECK(to_full.length_at(5, 4) == 4);
  CHECK(to_full.length_at(0, 4) == 4);
  Options options = growing("6st");
  options.end = 16;
  const SequenceLengthWarmup to_end(options);
  CHECK(to_end.length_at(0.999, 32) == 8);
  CHECK(to_end.length_at(1, 32) == 16);
}

TEST_CASE("SequenceLengthWarmup: by steps, epochs, samples and tokens, with a GPT on text") {
  CHECK(lengths(train(growing("6st"))) == std::vector<int64_t>{8, 8, 16, 16, 24, 24, 32, 32, 32, 32});
  CHECK(lengths(train(growing("0.6ep"))) == std::vector<int64_t>{8, 8, 16, 16, 24, 24, 32, 32, 32, 32});
  CHECK(lengths(train(growing("24sa"))) == std::vector<int64_t>{8, 8, 16, 16, 24, 24, 32, 32, 32, 32});
  // 4 x 8 tokens a batch, then 4 x 16: a third of 192 is passed after two batches, two thirds after three.
  CHECK(lengths(train(growing("192tok"))) == std::vector<int64_t>{8, 8, 16, 24, 32, 32, 32, 32, 32, 32});
  const Trained run = train(growing("6st"));
  CHECK(run.tokens == 4 * (8 + 8 + 16 + 16 + 24 + 24 + 4 * 32));
  const auto logged = run.logger->values("sequence_length");
  REQUIRE(logged.size() == 10);
  CHECK(logged[0].second == 8);
  CHECK(logged[4].second == 24);
  CHECK(logged[9].second == 32);
}

TEST_CASE("SequenceLengthWarmup: accumulation, whose windows have several lengths only if the position passes one") {
  const Trained run = train(growing("3st"), [](TrainerOptions& o) { o.accumulate_grad_batches = 2; });
  CHECK(lengths(run) == std::vector<int64_t>{8, 8, 16, 16, 24, 24, 32, 32, 32, 32});
}

TEST_CASE("SequenceLengthWarmup: segments keep all tokens, in more rows") {
  const Trained run = train(growing("6st", LongSequences::segment));
  // 24 does not divide 32.
  CHECK(run.module->shapes ==
        std::vector<std::pair<int64_t, int64_t>>{
            {16, 8}, {16, 8}, {8, 16}, {8, 16}, {8, 16}, {8, 16}, {4, 32}, {4, 32}, {4, 32}, {4, 32}});
  CHECK(run.tokens == 40 * 32);
  FakeRunContext context;
  SequenceLengthWarmup warmup(growing("6st", LongSequences::segment));
  const Batch batch = counted(2, 32), shaped = warmup.shape_batch(context, batch);
  CHECK(at::equal(shaped["input"], at::arange(64, at::kLong).view({8, 8})));
  CHECK(at::equal(shaped["target"], at::arange(1, 65, at::kLong).view({8, 8})));
}

TEST_CASE("SequenceLengthWarmup: another dimension than the second") {
  FakeRunContext context;
  Options options = growing("6st", LongSequences::segment);
  options.keys = {"input"};
  options.dim = 2;
  SequenceLengthWarmup segments(options);
  const Tensor x = at::arange(2 * 3 * 32, at::kLong).view({2, 3, 32});
  const Tensor rows = segments.shape_batch(context, Batch{{"input", x}})["input"];
  CHECK(rows.sizes() == at::IntArrayRef({8, 3, 8}));
  CHECK(at::equal(rows[1], x[0].narrow(1, 8, 8)));
  CHECK(at::equal(rows[4], x[1].narrow(1, 0, 8)));
  options.mode = LongSequences::truncate;
  SequenceLengthWarmup truncates(options);
  const Batch with_label{{"input", x}, {"label", at::arange(2, at::kLong)}};
  const Batch shorter = truncates.shape_batch(context, with_label);
  CHECK(at::equal(shorter["input"], x.narrow(2, 0, 8)));
  CHECK(shorter["label"].sizes() == at::IntArrayRef({2}));
  // The batch that was given stays as it is.
  CHECK(with_label["input"].size(2) == 32);
}

TEST_CASE("SequenceLengthWarmup: a resumed fit equals one that is not interrupted") {
  for (const char* duration : {"12st", "1.2ep", "40sa", "700tok"}) {
    const auto two_epochs = [](TrainerOptions& o) { o.max_epochs = 2; };
    const Trained whole = train(growing(duration), two_epochs);
    for (const int64_t stop : {3, 10, 13}) {
      CAPTURE(duration, stop);
      const Trained first = train(growing(duration), [&](TrainerOptions& o) { o.max_epochs = 2, o.max_steps = stop; });
      const Trained second = train(growing(duration), two_epochs, first.report.last_checkpoint->string());
      CHECK(same_weights(weights(*second.module), weights(*whole.module)));
      std::vector<int64_t> all = lengths(first);
      for (const int64_t own : lengths(second)) all.push_back(own);
      CHECK(all == lengths(whole));
    }
  }
}

TEST_CASE("SequenceLengthWarmup: the filter of the callback selects the batches that it changes") {
  static TemporaryFolder folder;
  struct Shape : SelfPlanned {
    std::vector<int64_t> columns;
    StepOutput training_step(const Batch& batch, int64_t) override {
      columns.push_back(batch["y"].size(1));
      return forward(batch[0]).pow(2).mean();
    }
  };
  Options options{.start = 1, .duration = length("100st"), .step = 1, .keys = {"y"}};
  TrainerOptions trainer = quiet(folder);
  trainer.limit_val_batches = 0;
  trainer.max_steps = 4;
  TrainerComponents components;
  const auto callback = std::make_shared<SequenceLengthWarmup>(options);
  CallbackFilter filter;
  filter.from = length("3st");
  callback->set_common_options(filter);
  components.add(callback);
  const auto module = std::make_shared<Shape>();
  Trainer(trainer, components).fit(module, regression_data());
  CHECK(module->columns == std::vector<int64_t>{2, 2, 1, 1});
}

TEST_CASE("SequenceLengthWarmup: only the first batch of a fit must be as long as start") {
  FakeRunContext run;
  SequenceLengthWarmup warmup(growing("6st"));
  warmup.on_train_start(run);
  CHECK(warmup.shape_batch(run, counted(2, 32))["input"].size(1) == 8);
  CHECK(warmup.shape_batch(run, counted(2, 4))["input"].size(1) == 4);
  run.now.batches_total.completed = 3;
  SequenceLengthWarmup resumed(growing("6st"));
  resumed.on_train_start(run);
  CHECK(resumed.shape_batch(run, counted(2, 4))["input"].size(1) == 4);
}

TEST_CASE("SequenceLengthWarmup: an end that no sequence reaches is reported") {
  const auto reports = [](std::optional<int64_t> end) {
    const LogLines lines;
    Options options = growing("6st");
    options.end = end;
    train(options);
    CHECK(lines.count("but no sequence was longer than 32") == lines.count("[sequence_length_warmup.long_end]"));
    return lines.count("[sequence_length_warmup.long_end]");
  };
  CHECK(reports(64) == 1);
  CHECK(reports(32) == 0);
  CHECK(reports({}) == 0);
}

TEST_CASE("SequenceLengthWarmup: a fit that ends before the warm-up says so") {
  const auto reports = [](const char* duration) {
    const LogLines lines;
    train(growing(duration));
    const size_t count = lines.count("[sequence_length_warmup.not_ended]");
    CHECK(lines.count("after 10 steps, before the warm-up of 30st did: the last sequences had a length of 8") == count);
    return count;
  };
  CHECK(reports("30st") == 1);
  CHECK(reports("10st") == 0);
}

TEST_CASE("SequenceLengthWarmup: invalid options are errors") {
  const auto error = [](const std::function<void(Options&)>& change) {
    Options options = growing("6st");
    change(options);
    return message_of<ConfigError>([&] { SequenceLengthWarmup{options}; });
  };
  CHECK_THAT(error([](Options& o) { o.start = 0; }), ContainsSubstring("start"));
  CHECK_THAT(error([](Options& o) { o.start = 12; }),
             ContainsSubstring("start must be a multiple of step (8); got 12"));
  CHECK_THAT(error([](Options& o) { o.end = 20; }), ContainsSubstring("end must be a multiple of step (8); got 20"));
  CHECK_THAT(error([](Options& o) { o.start = 16, o.end = 8; }), ContainsSubstring("got start 16 and end 8"));
  CHECK_THAT(error([](Options& o) { o.duration = length("0st"); }), ContainsSubstring("longer than 0"));
  CHECK_THAT(error([](Options& o) { o.duration = length("5min"); }), ContainsSubstring("5min"));
  CHECK_THAT(error([](Options& o) { o.keys.clear(); }), ContainsSubstring("keys"));
  CHECK_THAT(error([](Options& o) { o.dim = 0; }), ContainsSubstring("dim"));
  CHECK_THAT(error([](Options& o) { o.step = 0; }), ContainsSubstring("step"));
}

TEST_CASE("SequenceLengthWarmup: batches that do not fit are errors that say what they have") {
  Options options = growing("6st");
  options.keys = {"tokens"};
  CHECK_THAT(shape_error(options, counted(2, 32)),
             ContainsSubstring("there is no 'tokens'. They have: input, target."));
  options.keys = {"input"};
  options.dim = 2;
  CHECK_THAT(shape_error(options, counted(2, 32)),
             ContainsSubstring("'input' must be a tensor with dimension 2; got [2, 32]"));
  Batch uneven{{"input", at::arange(64).view({2, 32})}, {"target", at::arange(32).view({2, 16})}};
  CHECK_THAT(shape_error(growing("6st"), uneven), ContainsSubstring("got 32 and 16 for 'target'"));
  Batch labelled = counted(2, 32);
  labelled.add("label", at::arange(2));
  CHECK_THAT(shape_error(growing("6st", LongSequences::segment), labelled),
             ContainsSubstring("'label' is not among keys"));
  CHECK_THAT(shape_error(growing("6st", LongSequences::segment), counted(2, 31)),
             ContainsSubstring("no multiple of step (8) up to 8 divides 31"));
  CHECK_THAT(shape_error(growing("6st"), counted(2, 4)),
             ContainsSubstring("start 8 is longer than dimension 1 of 'input' (4 of [2, 4]). Set a smaller start"));
  struct NoTokens : SelfPlanned {};
  const TemporaryFolder folder;
  options = growing("100tok");
  options.keys = {"x"};
  TrainerComponents components;
  components.add(std::make_shared<SequenceLengthWarmup>(options));
  CHECK_THAT(message_of<ConfigError>(
                 [&] { Trainer(quiet(folder), components).fit(std::make_shared<NoTokens>(), regression_data()); }),
             ContainsSubstring("num_tokens"));
  options.duration = length("1ep");
  TrainerComponents by_epoch;
  by_epoch.add(std::make_shared<SequenceLengthWarmup>(options));
  CHECK_THAT(message_of<ConfigError>(
                 [&] { Trainer(quiet(folder), by_epoch).fit(std::make_shared<NoTokens>(), regression_stream(40)); }),
             ContainsSubstring("needs a training loader of known length; got 1ep"));
}

}  // namespace sequence_length_warmup_test
