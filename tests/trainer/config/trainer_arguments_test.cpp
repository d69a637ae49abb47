// Arguments of the Trainer that say when, how long and how carefully, each by its effect.
#include "trainer/boring.h"

#include <ATen/Context.h>
#include <ATen/ops/nan_to_num.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <limits>
#include <thread>

#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/config.h"

namespace trainer_arguments_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr Interval::Unit kSeconds = Interval::Unit::seconds;

struct Counting : SelfPlanned {
  int64_t train = 0, val = 0;
  std::vector<int64_t> validated_at;
  std::vector<double> first_of_epoch;
  std::chrono::milliseconds pause{0};
  std::function<void(Counting&)> at_batch_end;
  StepOutput training_step(const Batch& b, int64_t i) override {
    ++train;
    if (i == 0) first_of_epoch.push_back(b[0][0][0].item<double>());
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    return SelfPlanned::training_step(b, i);
  }
  Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
    ++val;
    return SelfPlanned::validation_step(b, i, l);
  }
  void on_validation_start() override {
    if (!run().sanity_checking()) validated_at.push_back(run().progress().batches_total.completed);
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    if (at_batch_end) at_batch_end(*this);
  }
};

std::shared_ptr<Counting> fit(const TrainerOptions& options, std::shared_ptr<DataModule> data = regression_data(),
                              FitReport* report = nullptr, TrainerComponents components = {},
                              std::function<void(Counting&)> at_batch_end = {}, int pause_ms = 0) {
  auto module = std::make_shared<Counting>();
  module->at_batch_end = std::move(at_batch_end);
  module->pause = std::chrono::milliseconds(pause_ms);
  const FitReport result = Trainer(options, std::move(components)).fit(module, data);
  if (report) *report = result;
  return module;
}

TrainerOptions from_yaml(const std::string& trainer_section) {
  Problems problems;
  ConfigNode node = parse_yaml(cat("trainer: ", trainer_section), "t.yaml", problems);
  problems.throw_if_any();
  return config_from_node(node).trainer;
}

const auto stop_at_once = [](Counting& m) { m.run().request_stop("enough"); };

}  // namespace

TEST_CASE("min_epochs and min_steps hold up a requested stop, not a limit") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 5;
  FitReport report;
  CHECK(fit(options, regression_data(), &report, {}, stop_at_once)->train == 1);
  CHECK(report.stop_reason == "enough");
  options.min_epochs = 2;
  CHECK(fit(options, regression_data(), &report, {}, stop_at_once)->train == 20);
  CHECK(report.stop_reason == "enough");
  options.min_epochs.reset();
  options.min_steps = 13;
  CHECK(fit(options, regression_data(), nullptr, {}, stop_at_once)->train == 13);
  options.max_steps = 12;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("min_steps") && ContainsSubstring("max_steps"));
  options.max_steps = -1;
  options.min_steps.reset();
  options.min_epochs = 6;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("min_epochs"));
}

TEST_CASE("max_time ends a fit, over all parts of a resumed one") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = -1;
  options.max_time = Interval{0.2, kSeconds};
  FitReport report;
  const auto module = fit(options, regression_data(400, 0), &report, {}, {}, 5);
  CHECK(report.stop_reason == "max_time");
  CHECK(module->train >= 10);
  CHECK(module->train <= 42);
  CHECK(report.train_seconds >= 0.2);
  // The time of the first part counts in the second: only one batch is left for it.
  auto again = std::make_shared<Counting>();
  const FitReport second = Trainer(options).fit(again, regression_data(400, 0), report.last_checkpoint->string());
  CHECK(again->train == 0);
  CHECK(second.stop_reason == "max_time");
  options.max_time = Interval{3, Interval::Unit::epochs};
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("the unit must be one of s, min, h"));
  CHECK_THROWS_WITH(from_yaml("{max_time: 3ep}"), ContainsSubstring("the unit must be one of s, min, h"));
  CHECK_THROWS_WITH(from_yaml("{max_time: 90}"), ContainsSubstring("write the unit too: 90s"));
  CHECK_THROWS_WITH(from_yaml("{max_time: '00:12:00:00'}"), ContainsSubstring("write a duration with its unit"));
  CHECK(from_yaml("{max_time: 90min}").max_time->value == 5400);
}

TEST_CASE("val_check_interval as an interval of the run: steps, epochs, samples, parts, time") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  const auto at = [&](const char* text, int64_t accumulate = 1) {
    options.val_check_interval = *Interval::parse(text);
    options.accumulate_grad_batches = accumulate;
    return fit(options)->validated_at;
  };
  CHECK(at("4st") == std::vector<int64_t>{4, 8, 12, 16, 20});
  CHECK(at("2st", 3) == std::vector<int64_t>{6, 10, 16, 20});  // windows of 3, 3, 3, 1
  CHECK(at("1ep") == std::vector<int64_t>{10, 20});
  CHECK(at("0.5ep") == std::vector<int64_t>{5, 10, 15, 20});
  CHECK(at("24sa") == std::vector<int64_t>{6, 12, 18});
  CHECK(at("0.25dur") == std::vector<int64_t>{5, 10, 15, 20});
  CHECK_THROWS_WITH(at("10tok"), ContainsSubstring("num_tokens"));
  // Also where the class is hidden after its base, so that only the first batch can tell.
  std::shared_ptr<LightningModule> hidden = std::make_shared<SelfPlanned>();
  CHECK_THROWS_WITH(Trainer(options).fit(hidden, regression_data()), ContainsSubstring("num_tokens"));
  options.val_check_interval = Interval{0.05, kSeconds};
  const auto begin = std::chrono::steady_clock::now();
  const auto timed = fit(options, regression_data(), nullptr, {}, {}, 10)->validated_at;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(timed.size() >= 2);
  CHECK(static_cast<double>(timed.size()) <= seconds / 0.05);
  CHECK(from_yaml("{val_check_interval: 30min}").val_check_interval.interval->value == 1800);
  CHECK(from_yaml("{val_check_interval: 1}").val_check_interval.batches.count == 1);
  CHECK(from_yaml("{val_check_interval: 1.0}").val_check_interval.at_epoch_end());
}

TEST_CASE("tokens counted by the module drive intervals and progress") {
  struct Tokens : Counting {
    std::optional<int64_t> num_tokens(const Batch& b) const override { return 10 * b.size(); }
    void on_train_end() override { seen = run().progress().tokens_seen; }
    int64_t seen = 0;
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.val_check_interval = *Interval::parse("120tok");
  auto module = std::make_shared<Tokens>();
  Trainer(options).fit(module, regression_data());
  CHECK(module->validated_at == std::vector<int64_t>{3, 6, 9});
  CHECK(module->seen == 400);
}

TEST_CASE("overfit_batches: the same first batches in each epoch, in training and validation") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.overfit_batches = 2;
  const auto module = fit(options);
  CHECK(module->train == 6);
  CHECK(module->val == 6);
  CHECK(module->first_of_epoch == std::vector<double>(3, regression(40, 1)[0][0][0].item<double>()));
  options.overfit_batches = 0.5;
  CHECK(fit(options)->train == 15);
  options.limit_val_batches = int64_t{0};
  const auto unvalidated = fit(options);
  CHECK(unvalidated->train == 15);
  CHECK(unvalidated->val == 0);
}

TEST_CASE("the sanity check moves neither random numbers nor metrics") {
  const auto train = [](int64_t batches) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.num_sanity_val_steps = batches;
    at::manual_seed(3);
    struct Random : Counting {
      Random() : Counting() {}
      Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
        (void)at::randn({3});
        return Counting::validation_step(b, i, l);
      }
    };
    auto module = std::make_shared<Random>();
    module->drop->options.p(0.5);
    auto logger = std::make_shared<MemoryLogger>();
    TrainerComponents components;
    components.seed = 7;
    components.loggers = {logger};
    Trainer(options, components).fit(module, regression_data());
    CHECK(module->val == 3 + std::max<int64_t>(batches, batches < 0 ? 3 : 0));
    return std::pair(weights(*module), logger->values("val_loss"));
  };
  const auto without = train(0), with = train(2), all = train(-1);
  CHECK(same_weights(without.first, with.first));
  CHECK(same_weights(without.first, all.first));
  CHECK(without.second == with.second);
}

TEST_CASE("validate_first runs a whole validation that counts, in place of the sanity check") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.num_sanity_val_steps = 2;
  options.validate_first = true;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  const auto module = fit(options, regression_data(), nullptr, components);
  CHECK(module->validated_at == std::vector<int64_t>{0, 10});
  CHECK(module->val == 6);
  REQUIRE(logger->values("val_loss").size() == 2);
  CHECK(logger->values("val_loss")[0].first == 0);
}

TEST_CASE("reload_dataloaders_every_n_epochs recreates the loaders") {
  struct Asked : SelfPlanned {
    int64_t train_asked = 0, val_asked = 0;
    Loaders loader() {
      return {std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(8)),
                                           DataLoaderOptions{.batch_size = 4})};
    }
    Loaders train_dataloader() override { return ++train_asked, loader(); }
    Loaders val_dataloader() override { return ++val_asked, loader(); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 5;
  const auto asked = [&](int64_t every) {
    options.reload_dataloaders_every_n_epochs = every;
    auto module = std::make_shared<Asked>();
    CHECK(Trainer(options).fit(module).global_step == 10);
    CHECK(module->train_asked == module->val_asked);
    return module->train_asked;
  };
  CHECK(asked(0) == 1);
  CHECK(asked(1) == 5);
  CHECK(asked(2) == 3);
}

TEST_CASE("deterministic: warn, benchmark and detect_anomaly are set during the run and back afterwards") {
  struct Looking : SelfPlanned {
    bool deterministic = false, warn_only = false, benchmark = false, anomaly = false;
    void on_train_start() override {
      deterministic = at::globalContext().deterministicAlgorithms();
      warn_only = at::globalContext().deterministicAlgorithmsWarnOnly();
      benchmark = at::globalContext().benchmarkCuDNN();
      anomaly = torch::autograd::AnomalyMode::is_enabled();
    }
  };
  TemporaryFolder folder;
  const auto look = [&](const std::string& yaml) {
    TrainerOptions options = from_yaml(yaml);
    const TrainerOptions base = quiet(folder);
    options.accelerator = base.accelerator;
    options.default_root_dir = base.default_root_dir;
    options.enable_progress_bar = options.enable_model_summary = false;
    options.max_epochs = 1;
    auto module = std::make_shared<Looking>();
    Trainer(options).fit(module, regression_data(8, 0));
    CHECK_FALSE(at::globalContext().deterministicAlgorithms());
    CHECK_FALSE(at::globalContext().benchmarkCuDNN());
    CHECK_FALSE(torch::autograd::AnomalyMode::is_enabled());
    return module;
  };
  CHECK(look("{deterministic: true}")->deterministic);
  CHECK_FALSE(look("{deterministic: true}")->warn_only);
  CHECK(look("{deterministic: warn}")->warn_only);
  CHECK(look("{benchmark: true}")->benchmark);
  CHECK_FALSE(look("{benchmark: true, deterministic: true}")->benchmark);
  CHECK(look("{detect_anomaly: true}")->anomaly);
  CHECK(look("{debug: true}")->anomaly);
  CHECK_FALSE(look("{}")->anomaly);
  CHECK_THROWS_WITH(from_yaml("{deterministic: maybe}"), ContainsSubstring("bool or warn"));
}

TEST_CASE("detect_anomaly names the operation whose backward gives NaN") {
  struct Nan : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t) override { return (forward(b[0]) * 0).sqrt().sum(); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  CHECK_NOTHROW(Trainer(options).fit(std::make_shared<Nan>(), regression_data(4, 0)));
  options.detect_anomaly = true;
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<Nan>(), regression_data(4, 0)),
                    ContainsSubstring("MulBackward"));
}

TEST_CASE("debug checks batches, losses, gradients and parameters; off, nothing is checked") {
  struct Broken : SelfPlanned {
    int kind = 0;
    StepOutput training_step(const Batch& b, int64_t) override {
      const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
      if (kind == 1) return loss * std::numeric_limits<double>::infinity();
      if (kind == 2) return first->forward(b[0]).square().mean();  // `second` gets no gradient
      return loss;
    }
    Batch on_before_batch_transfer(Batch b, int64_t) override {
      if (kind == 3) b.set(1, b[1].narrow(0, 0, 1));
      if (kind == 4) b.set(0, b[0] * std::numeric_limits<double>::quiet_NaN());
      return b;
    }
    void on_after_backward() override {
      if (kind == 5) second->weight.mutable_grad().fill_(std::numeric_limits<float>::quiet_NaN());
    }
    void on_before_optimizer_step(Optimizer&) override {
      if (kind == 6) first->bias.mutable_grad().fill_(std::numeric_limits<float>::max());
    }
    OptimizerPlan configure_optimizers() override {
      return std::make_shared<SGD>(SGD::Options{.lr = kind == 6 ? 1e6 : 0.05});
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  const auto run = [&](int kind) {
    auto module = std::make_shared<Broken>();
    module->kind = kind;
    Trainer(options).fit(module, regression_data(4, 0));
  };
  options.on_nonfinite = OnNonFinite::off;
  for (int kind : {0, 1, 2, 4, 5, 6}) CHECK_NOTHROW(run(kind));
  options.debug = true;
  CHECK_NOTHROW(run(0));
  CHECK_THROWS_AS(run(1), NonFiniteError);
  CHECK_THROWS_WITH(run(1), ContainsSubstring("the loss is .inf") && ContainsSubstring("batch 0"));
  CHECK_THROWS_WITH(run(3), ContainsSubstring("one row per sample; 'y' is [1, 2]"));
  CHECK_THROWS_WITH(run(4), ContainsSubstring("'x' of the batch has NaN"));
  CHECK_THROWS_WITH(run(6), ContainsSubstring("first.bias after the optimizer's step"));
  std::string warned;
  log::reset_warnings();
  log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                &warned);
  run(2);
  log::set_sink({}, nullptr);
  CHECK_THAT(warned, ContainsSubstring("got no gradient: second.weight, second.bias"));
  // The module's hook comes after the check of the backward: found after the step.
  CHECK_THROWS_WITH(run(5), ContainsSubstring("second.weight"));
}

TEST_CASE("barebones: no files, no logging, no checkpoints, no sanity check") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.barebones = true;
  options.enable_progress_bar = options.enable_model_summary = true;
  options.num_sanity_val_steps = 2;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  FitReport report;
  const auto module = fit(options, regression_data(), &report, components);
  CHECK(module->train == 10);
  CHECK(module->val == 3);
  CHECK(report.run_dir.empty());
  CHECK(report.metrics.empty());
  CHECK(logger->rows.empty());
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("inference_mode: validate, test and predict in it, validation inside a fit never") {
  struct Looking : SelfPlanned {
    std::vector<bool> inference;
    Outputs validation_step(const Batch& b, int64_t, int64_t) override {
      inference.push_back(forward(b[0]).is_inference());
      log("val_loss", forward(b[0]).sum());
      return {};
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  auto module = std::make_shared<Looking>();
  Trainer(options).fit(module, regression_data(8, 4));
  CHECK(module->inference == std::vector<bool>{false});
  Trainer(options).validate(module, regression_data(8, 4));
  CHECK(module->inference.back());
  options.inference_mode = false;
  Trainer(options).validate(module, regression_data(8, 4));
  CHECK_FALSE(module->inference.back());
  // Training continues with the same module afterwards.
  CHECK(Trainer(options).fit(module, regression_data(8, 4)).global_step == 2);
}

TEST_CASE("devices: numbers, lists and strings; an invalid index is an error with the list") {
  CHECK(from_yaml("{devices: 2}").devices.count == 2);
  CHECK(from_yaml("{devices: -1}").devices.count == -1);
  CHECK(from_yaml("{devices: [3]}").devices.indices == std::vector<int64_t>{3});
  CHECK(from_yaml("{devices: '3,'}").devices.indices == std::vector<int64_t>{3});
  CHECK(from_yaml("{devices: '0, 2'}").devices.indices == std::vector<int64_t>{0, 2});
  CHECK(from_yaml("{devices: '2'}").devices.count == 2);
  CHECK(from_yaml("{devices: auto}").devices.is_auto());
  for (const char* wrong : {"0", "-2", "[]", "[0, 0]", "[-1]", "two", "'1;2'", "1.5", "{}"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(from_yaml(cat("{devices: ", wrong, "}")), ContainsSubstring("trainer.devices"));
  }
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.devices = std::vector<int64_t>{3};
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("there is no device 3; this machine has 1 cpu device: 0 ("));
  options.devices = -1;
  CHECK(fit(options)->train == 10);
  options.devices = std::vector<int64_t>{0};
  CHECK(fit(options)->train == 10);
}

TEST_CASE("precision takes Lightning's names") {
  TemporaryFolder folder;
  for (const auto& [name, type] : std::vector<std::pair<std::string, at::ScalarType>>{{"32", at::kFloat},
                                                                                      {"'32'", at::kFloat},
                                                                                      {"32-true", at::kFloat},
                                                                                      {"64", at::kDouble},
                                                                                      {"'64-true'", at::kDouble}}) {
    CAPTURE(name);
    TrainerOptions options = from_yaml(cat("{precision: ", name, "}"));
    const TrainerOptions base = quiet(folder);
    options.accelerator = base.accelerator;
    options.default_root_dir = base.default_root_dir;
    options.enable_progress_bar = options.enable_model_summary = false;
    options.max_epochs = 1;
    CHECK(fit(options)->parameters()[0].scalar_type() == type);
  }
  CHECK_THROWS_WITH(from_yaml("{precision: fp8}"), ContainsSubstring("unknown precision 'fp8'"));
}

TEST_CASE("enable_model_summary prints the layers, false does not") {
  TemporaryFolder folder;
  const auto printed = [&](bool on) {
    std::string text;
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &text);
    TrainerOptions options = quiet(folder);
    options.enable_model_summary = on;
    fit(options, regression_data(8, 0));
    log::set_sink({}, nullptr);
    return text;
  };
  CHECK_THAT(printed(true), ContainsSubstring("Trainable params"));
  CHECK_THAT(printed(false), !ContainsSubstring("Trainable params"));
}

TEST_CASE("an interval of length 0 is refused") {
  CHECK_THROWS_WITH(IntervalTrigger(Interval{}), ContainsSubstring("longer than 0"));
}

TEST_CASE("a layer that the user keeps in eval mode stays in it, and is named once") {
  struct Frozen : SelfPlanned {
    bool training = true;
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { training = drop->is_training(); }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Frozen>();
  module->drop->eval();
  std::string warned;
  log::reset_warnings();
  log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                &warned);
  Trainer(quiet(folder)).fit(module, regression_data(8, 4));
  log::set_sink({}, nullptr);
  CHECK_FALSE(module->training);
  CHECK_THAT(warned, ContainsSubstring("in eval mode at the start of training: drop."));
}

}  // namespace trainer_arguments_test
