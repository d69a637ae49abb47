// Runs with adapters of linear layers: what is trained, what checkpoints hold, and what is refused.
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "fulgur/callbacks/finetuning.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/callbacks/weight_averaging.h"
#include "fulgur/checkpoint/adapters.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/nn/checkpoint.h"
#include "fulgur/nn/linear.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/load_from_checkpoint.h"
#include "fulgur/trainer/yaml.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"
#include "trainer/boring.h"

namespace adapters_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// Regression through a nested layer and a head, of Fulgur's or LibTorch's layers.
template <class Linear>
struct Net : LightningModule {
  torch::nn::Sequential body{nullptr};
  Linear head{nullptr};
  Net() {
    at::manual_seed(3);
    body = register_module("body", torch::nn::Sequential(Linear(4, 8)));
    head = register_module("head", Linear(8, 2));
  }
  Tensor forward(const Tensor& x) { return head->forward(body->forward(x).relu()); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", at::mse_loss(forward(batch[0]), batch[1]));
    return {};
  }
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    log("test_loss", at::mse_loss(forward(batch[0]), batch[1]));
    return {};
  }
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.05, 1000, 0.5); }
};

using Ours = Net<nn::Linear>;
using Theirs = Net<torch::nn::Linear>;

Adapters on(std::vector<std::string> target) {
  Adapters adapters;
  adapters.target = std::move(target);
  adapters.rank = 2;
  adapters.alpha = 6;
  return adapters;
}

TrainerComponents with(const std::optional<Adapters>& adapters) {
  TrainerComponents components;
  components.seed = 5;
  components.adapters = adapters;
  return components;
}

double test_loss(const TemporaryFolder& folder, const std::shared_ptr<LightningModule>& module,
                 const std::optional<Adapters>& adapters, const CheckpointChoice& from = {}) {
  const EvalReport report = Trainer(quiet(folder), with(adapters)).test(module, regression_data(), from);
  REQUIRE(report.loaders.size() == 1);
  REQUIRE(report.loaders[0].size() == 1);
  return report.loaders[0][0].second;
}

template <class M>
std::string refusal(const std::optional<Adapters>& adapters) {
  const TemporaryFolder folder;
  return message_of<ConfigError>(
      [&] { Trainer(quiet(folder), with(adapters)).fit(std::make_shared<M>(), regression_data()); });
}

template <class M>
void check_only_adapters_learn() {
  const TemporaryFolder folder;
  const auto plain = std::make_shared<M>(), adapted = std::make_shared<M>();
  const auto before = weights(*plain);
  const double base = test_loss(folder, plain, {});
  CHECK(test_loss(folder, adapted, on({"*"})) == base);  // the same outputs to the bit
  Adapters adapters = on({"body.*", "head"});
  adapters.train = {"head.bias"};
  Trainer trainer(quiet(folder), with(adapters));
  const auto fitted = std::make_shared<M>();
  const FitReport report = trainer.fit(fitted, regression_data());
  const auto after = weights(*fitted);
  CHECK(after.size() == before.size() + 4);
  for (const char* name : {"body.0.weight", "body.0.bias", "head.weight"}) {
    CAPTURE(name);
    CHECK(after.at(name).equal(before.at(name)));
    CHECK_FALSE(fitted->named_parameters()[name].requires_grad());
  }
  CHECK_FALSE(after.at("head.bias").equal(before.at("head.bias")));
  for (const char* name : {"body.0.lora_B", "head.lora_B"})
    CHECK_FALSE(after.at(name).equal(at::zeros_like(after.at(name))));
  // The same Trainer tests what it has trained, and so does one that reads the checkpoint.
  const double trained = trainer.test(fitted, regression_data()).loaders[0][0].second;
  CHECK(trained != base);
  REQUIRE(report.last_checkpoint);
  const std::string checkpoint = report.last_checkpoint->string();
  CHECK(test_loss(folder, std::make_shared<M>(), adapters, checkpoint) == trained);
  // Without adapters, they are merged into the weights.
  CHECK(std::abs(test_loss(folder, std::make_shared<M>(), {}, checkpoint) - trained) < 1e-6);
}

struct Outcome {
  std::map<std::string, Tensor> weights;
  FitReport report;
  Tensor output;  ///< of the fitted module
};

template <class M>
Outcome fit(const TemporaryFolder& folder, const Adapters& adapters, int64_t batch_size, int64_t accumulate,
            int64_t max_steps = -1, const CheckpointChoice& from = {}, bool averages = false) {
  const auto module = std::make_shared<M>();
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.max_steps = max_steps;
  options.accumulate_grad_batches = accumulate;
  options.gradient_clip_val = 0.5;
  TrainerComponents components = with(adapters);
  if (averages) {
    WeightAveraging::Options averaging;
    averaging.decay = 0.5;
    averaging.copy_at_end = false;
    components.add(std::make_shared<WeightAveraging>(averaging));
  }
  Outcome outcome;
  const bool shuffles = from || averages;
  outcome.report = Trainer(options, components).fit(module, regression_data(48, 12, batch_size, shuffles), from);
  outcome.weights = weights(*module);
  module->eval();
  outcome.output = module->forward(regression(6, 9)[0]).detach();
  return outcome;
}

}  // namespace

TEST_CASE(
    "adapters: the first outputs are the model's, only adapters and what train names learn, and checkpoints hold "
    "both") {
  check_only_adapters_learn<Ours>();
  check_only_adapters_learn<Theirs>();
}

TEST_CASE("adapters of LibTorch's layers train like those of Fulgur's, and accumulated batches like large ones") {
  const TemporaryFolder folder;
  const auto ours = fit<Ours>(folder, on({"*"}), 8, 1).weights;
  const auto close_to_ours = [&](const std::map<std::string, Tensor>& others) {
    REQUIRE(others.size() == ours.size());
    for (const auto& [name, value] : ours) {
      CAPTURE(name);
      CHECK(value.allclose(others.at(name), 1e-3, 1e-4));
    }
  };
  close_to_ours(fit<Theirs>(folder, on({"*"}), 8, 1).weights);
  close_to_ours(fit<Ours>(folder, on({"*"}), 4, 2).weights);
  close_to_ours(fit<Theirs>(folder, on({"*"}), 4, 2).weights);
}

TEST_CASE("activation checkpointing computes a layer of LibTorch's with its adapter again") {
  struct Recomputes : Theirs {
    StepOutput training_step(const Batch& batch, int64_t) override {
      const auto all = [this](const Tensor& x) { return forward(x); };
      return at::mse_loss(nn::checkpoint(all, batch[0]), batch[1]);
    }
  };
  const TemporaryFolder folder;
  CHECK(same_weights(fit<Recomputes>(folder, on({"*"}), 8, 2).weights, fit<Theirs>(folder, on({"*"}), 8, 2).weights));
}

TEST_CASE("alpha and rank have their effect") {
  const TemporaryFolder folder;
  // After the first step, B is the same: AdamW's step does not depend on the scale of gradients.
  const Tensor usual = fit<Ours>(folder, on({"*"}), 8, 1, 1).output;
  Adapters other = on({"*"});
  other.alpha = 24;
  CHECK_FALSE(fit<Ours>(folder, other, 8, 1, 1).output.allclose(usual, 1e-3, 1e-3));
  other = on({"head"});
  other.rank = 3;
  const auto higher = fit<Ours>(folder, other, 8, 1, 1).weights;
  CHECK(higher.at("head.lora_A").size(0) == 3);
  CHECK_FALSE(higher.contains("body.0.lora_A"));
}

TEST_CASE(
    "a fit with adapters, dropout, accumulation and averages that is stopped and resumed ends with the same bits") {
  Adapters adapters = on({"*"});
  adapters.dropout = 0.25;
  adapters.train = {"*.bias"};
  const TemporaryFolder folder;
  const Outcome whole = fit<Ours>(folder, adapters, 4, 3, -1, {}, true);
  REQUIRE(whole.report.global_step == 12);
  adapters.dropout = 0;
  CHECK_FALSE(same_weights(fit<Ours>(folder, adapters, 4, 3, -1, {}, true).weights, whole.weights));
  adapters.dropout = 0.25;
  for (const int64_t stop : {1, 5, 10}) {
    CAPTURE(stop);
    const Outcome first = fit<Ours>(folder, adapters, 4, 3, stop, {}, true);
    REQUIRE(first.report.last_checkpoint);
    const Outcome second = fit<Ours>(folder, adapters, 4, 3, -1, first.report.last_checkpoint->string(), true);
    CHECK(same_weights(whole.weights, second.weights));
  }
  adapters.dropout = 0;
  const Outcome of_theirs = fit<Theirs>(folder, adapters, 4, 3, -1, {}, true);
  const Outcome first = fit<Theirs>(folder, adapters, 4, 3, 5, {}, true);
  const Outcome second = fit<Theirs>(folder, adapters, 4, 3, -1, first.report.last_checkpoint->string(), true);
  CHECK(same_weights(of_theirs.weights, second.weights));
}

TEST_CASE("with adapters, a run draws the other random numbers that it draws without") {
  struct Drawing : Ours {
    std::vector<float> drawn;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      drawn.push_back(at::randn({1}).item<float>());
      return Ours::training_step(batch, i);
    }
  };
  const TemporaryFolder folder;
  const auto numbers = [&](const std::optional<Adapters>& adapters) {
    const auto module = std::make_shared<Drawing>();
    at::manual_seed(5);
    Trainer(quiet(folder), with(adapters)).fit(module, regression_data());
    return module->drawn;
  };
  CHECK(numbers({}) == numbers(on({"*"})));
}

TEST_CASE("a checkpoint without adapters begins a run with them, and one with them a run without") {
  const TemporaryFolder folder;
  const FitReport plain = Trainer(quiet(folder), with({})).fit(std::make_shared<Ours>(), regression_data());
  REQUIRE(plain.last_checkpoint);
  const std::string base = plain.last_checkpoint->string();
  const double expected = test_loss(folder, std::make_shared<Ours>(), {}, base);
  CHECK(test_loss(folder, std::make_shared<Ours>(), on({"*"}), base) == expected);
  CHECK_THAT(message_of<CheckpointError>([&] {
               Trainer(quiet(folder), with(on({"*"}))).fit(std::make_shared<Ours>(), regression_data(), base);
             }),
             ContainsSubstring("the checkpoint has none") && ContainsSubstring("--load.weights_only true"));
  const auto begin = [&](const std::optional<Adapters>& adapters, const std::string& from) {
    TrainerComponents components = with(adapters);
    components.load.weights_only = true;
    return Trainer(quiet(folder), components).fit(std::make_shared<Ours>(), regression_data(), from);
  };
  const FitReport adapted = begin(on({"*"}), base);
  REQUIRE(adapted.last_checkpoint);
  const std::string checkpoint = adapted.last_checkpoint->string();
  CHECK_THAT(message_of<CheckpointError>([&] {
               Trainer(quiet(folder), with({})).fit(std::make_shared<Ours>(), regression_data(), checkpoint);
             }),
             ContainsSubstring("those of 2 layers"));
  CHECK(begin({}, checkpoint).global_step == 10);
  Adapters other = on({"*"});
  other.alpha = 3;
  CHECK_THAT(message_of<CheckpointError>([&] { test_loss(folder, std::make_shared<Ours>(), other, checkpoint); }),
             ContainsSubstring("another alpha: 6.0"));
  other = on({"head"});
  CHECK_THAT(message_of<CheckpointError>([&] { test_loss(folder, std::make_shared<Ours>(), other, checkpoint); }),
             ContainsSubstring("it leaves out body.0."));
}

TEST_CASE(
    "merged weights compute what the adapters did, and adapters alone continue on the model that they belong to") {
  const TemporaryFolder folder;
  Adapters adapters = on({"*"});
  adapters.train = {"head.bias"};
  const auto fitted = std::make_shared<Ours>();
  Trainer trainer(quiet(folder), with(adapters));
  const FitReport report = trainer.fit(fitted, regression_data());
  const double expected = trainer.test(fitted, regression_data()).loaders[0][0].second;
  REQUIRE(report.last_checkpoint);
  CheckpointContent content = read_checkpoint(*report.last_checkpoint);
  const auto record = adapters_of(content.state);
  REQUIRE(record);
  CHECK(record->layers == std::vector<std::string>{"body.0", "head"});
  CHECK(record->trained == std::vector<std::string>{"head.bias"});
  write_adapters(folder / "alone", content.module, *record);
  Ours merged;
  merge_adapters(content.module, *record);
  CHECK(load_module_state(merged, content.module).differences.empty());
  const Tensor x = regression(6, 9)[0];
  fitted->eval();
  CHECK(merged.forward(x).allclose(fitted->forward(x), 1e-5, 1e-6));
  adapters.path = folder / "alone";
  CHECK(test_loss(folder, std::make_shared<Ours>(), adapters) == expected);
  Adapters other = adapters;
  other.alpha = 12;
  CHECK_THAT(message_of<CheckpointError>([&] { test_loss(folder, std::make_shared<Ours>(), other); }),
             ContainsSubstring("Set adapters.alpha to 6.0"));
  other = adapters;
  other.target = {"head"};
  CHECK_THAT(message_of<CheckpointError>([&] { test_loss(folder, std::make_shared<Ours>(), other); }),
             ContainsSubstring("unexpected: body.0.lora_A"));
  other = adapters;
  other.train = {"*.bias"};
  CHECK_THAT(message_of<CheckpointError>([&] { test_loss(folder, std::make_shared<Ours>(), other); }),
             ContainsSubstring("missing: body.0.bias"));
  // A run that begins with a checkpoint does not read the file.
  other = adapters;
  other.path = folder / "absent";
  CHECK(test_loss(folder, std::make_shared<Ours>(), other, report.last_checkpoint->string()) == expected);
  CHECK_THROWS_AS(test_loss(folder, std::make_shared<Ours>(), other), CheckpointError);
}

TEST_CASE("Finetuning freezes adapters until it unfreezes them") {
  const TemporaryFolder folder;
  const auto fitted = [&](const std::string& at) {
    Finetuning::Options freezing;
    freezing.freeze = {"body.*lora*"};
    freezing.unfreeze = {{.pattern = "body.*lora*", .at = *Interval::parse(at), .lr = {}}};
    TrainerComponents components = with(on({"*"}));
    components.add(std::make_shared<Finetuning>(freezing));
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    const auto module = std::make_shared<Ours>();
    Trainer(options, components).fit(module, regression_data());
    return weights(*module);
  };
  const Tensor zero = at::zeros({8, 2});
  const auto early = fitted("1ep"), late = fitted("9ep");
  CHECK_FALSE(early.at("body.0.lora_B").equal(zero));
  CHECK(late.at("body.0.lora_B").equal(zero));
  CHECK_FALSE(late.at("head.lora_B").equal(at::zeros({2, 2})));
}

TEST_CASE("the start of a fit says how many parameters are trained") {
  const TemporaryFolder folder;
  const std::string lines =
      shown_lines([&] { Trainer(quiet(folder), with(on({"*"}))).fit(std::make_shared<Ours>(), regression_data()); });
  // A and B of 2 (4 + 8) and 2 (8 + 2), beside 5 · 8 + 9 · 2.
  CHECK_THAT(lines,
             ContainsSubstring("adapters: 2 layers, rank 2, alpha 6.0; 44 of 102 parameters are trained (43.14 %)"));
}

TEST_CASE("adapters: patterns that match nothing, and layers that cannot have one, are errors that name them") {
  CHECK_THAT(refusal<Ours>(on({"bodi.0", "head"})),
             ContainsSubstring("the pattern 'bodi.0' matches none") && ContainsSubstring("body.0"));
  Adapters adapters = on({"head"});
  adapters.train = {"haed.bias"};
  CHECK_THAT(refusal<Ours>(adapters), ContainsSubstring("train must match") && ContainsSubstring("head.bias"));
  adapters.train = {"head.*"};
  CHECK_THAT(refusal<Ours>(adapters), ContainsSubstring("got 'head.weight'"));
  adapters = on({"*"});
  adapters.dropout = 0.1;
  CHECK_THAT(refusal<Theirs>(adapters),
             ContainsSubstring("does not work with dropout") && ContainsSubstring("fulgur::nn::Linear"));
  {
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.accelerator = "virtual";
    options.devices = 2;
    options.strategy = Spec<Strategy>("dp");
    CHECK_THAT(message_of<ConfigError>(
                   [&] { Trainer(options, with(on({"*"}))).fit(std::make_shared<Theirs>(), regression_data()); }),
               ContainsSubstring("strategy dp, which computes on several devices"));
  }
  struct Manual : Theirs {
    bool automatic_optimization() const override { return false; }
  };
  CHECK_THAT(refusal<Manual>(on({"*"})), ContainsSubstring("manual optimization"));
  struct Tied : Ours {
    nn::Linear again{nullptr};
    Tied() {
      again = register_module("again", nn::Linear(8, 2));
      again->weight = head->weight;
      tie_parameters(*this, "head.weight", "again.weight");
    }
  };
  CHECK_THAT(refusal<Tied>(on({"head"})), ContainsSubstring("is also"));
  CHECK_THAT(refusal<Tied>(on({"body.*", "hea*"})), ContainsSubstring("is also"));
  {
    // All linear layers: without those that cannot have an adapter.
    const TemporaryFolder all_folder;
    const auto tied = std::make_shared<Tied>();
    Trainer(quiet(all_folder), with(on({"*"}))).fit(tied, regression_data());
    const auto adapted = weights(*tied);
    CHECK(adapted.contains("body.0.lora_A"));
    CHECK_FALSE(adapted.contains("head.lora_A"));
    CHECK_FALSE(adapted.contains("again.lora_A"));
  }
  struct Normed : Ours {
    torch::nn::BatchNorm1d norm{nullptr};
    Normed() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
    StepOutput training_step(const Batch& batch, int64_t i) override {
      norm->forward(batch[0]);
      return Ours::training_step(batch, i);
    }
  };
  CHECK_THAT(refusal<Normed>(on({"head"})), ContainsSubstring("Add \"norm.*\" to train"));
  struct TwiceNormed : Normed {
    torch::nn::BatchNorm1d second{nullptr};
    TwiceNormed() { second = register_module("second", torch::nn::BatchNorm1d(4)); }
  };
  CHECK_THAT(refusal<TwiceNormed>(on({"head"})),
             ContainsSubstring("statistics of 2 layers") && ContainsSubstring("Add \"norm.*\", \"second.*\" to train"));
  adapters = on({"head"});
  adapters.train = {"norm.*"};
  const TemporaryFolder folder;
  const FitReport report = Trainer(quiet(folder), with(adapters)).fit(std::make_shared<Normed>(), regression_data());
  const auto record = adapters_of(read_checkpoint(*report.last_checkpoint).state);
  REQUIRE(record);
  CHECK(std::find(record->trained.begin(), record->trained.end(), "norm.running_var") != record->trained.end());
}

TEST_CASE("a module that ignores a layer is warned about, and one that has adapters needs them in each run") {
  struct Ignores : Ours {
    StepOutput training_step(const Batch& batch, int64_t) override {
      return at::mse_loss(at::linear(body->forward(batch[0]), head->weight), batch[1]);
    }
  };
  const TemporaryFolder folder;
  const std::string lines =
      shown_lines([&] { Trainer(quiet(folder), with(on({"*"}))).fit(std::make_shared<Ignores>(), regression_data()); });
  CHECK_THAT(lines, ContainsSubstring("the adapters of head:") && ContainsSubstring("[trainer.unused_adapters]"));
  const auto fitted = std::make_shared<Ours>();
  const std::string quiet_lines =
      shown_lines([&] { Trainer(quiet(folder), with(on({"*"}))).fit(fitted, regression_data()); });
  CHECK(quiet_lines.find("unused_adapters") == std::string::npos);
  CHECK_THAT(message_of<ConfigError>([&] { Trainer(quiet(folder), with({})).fit(fitted, regression_data()); }),
             ContainsSubstring("TrainerComponents::adapters"));
  CHECK_THAT(
      message_of<ConfigError>([&] { Trainer(quiet(folder), with(on({"head"}))).fit(fitted, regression_data()); }),
      ContainsSubstring("'body.0' has one"));
}

TEST_CASE("adapters in a config are checked, and the config reads back") {
  const auto config_of = [](const std::string& yaml) {
    Problems problems;
    const ConfigNode node = parse_yaml(yaml, "test", problems);
    problems.throw_if_any();
    return config_from_node(node);
  };
  CHECK_FALSE(config_of("seed_everything: 1").adapters);
  CHECK_FALSE(config_of("adapters: null").adapters);
  const Config config =
      config_of("adapters: {target: [a, 'b.*'], rank: 4, alpha: 2.5, dropout: 0.1, train: [c], path: d}");
  const Config again = config_from_node(config.write());
  for (const Config* each : {&config, &again}) {
    REQUIRE(each->adapters);
    CHECK(each->adapters->target == std::vector<std::string>{"a", "b.*"});
    CHECK(each->adapters->rank == 4);
    CHECK(each->adapters->alpha == 2.5);
    CHECK(each->adapters->dropout == 0.1);
    CHECK(each->adapters->train == std::vector<std::string>{"c"});
    CHECK(each->adapters->path == std::filesystem::path("d"));
  }
  for (const char* wrong : {"{rank: 4}", "{target: []}", "{target: [a], rank: 0}", "{target: [a], alpha: 0}",
                            "{target: [a], dropout: 1}", "{target: [a], ranks: 2}"})
    CHECK_THROWS_AS(config_of(std::string("adapters: ") + wrong), ConfigError);
}

}  // namespace adapters_test
