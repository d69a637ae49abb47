#include "fulgur/callbacks/finetuning.h"

#include "trainer/checkpointing/interrupted.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <map>

#include "callbacks/weights/diverging_once.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "support/expect_error.h"

namespace finetuning_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::test::interrupted;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

using Options = Finetuning::Options;
using Change = std::function<void(TrainerOptions&, TrainerComponents&)>;
using Weights = std::map<std::string, Tensor>;

Interval length(const char* text) { return *Interval::parse(text); }

/// Adam with a group for each layer, and a rate that is halved after each epoch.
struct Grouped : BoringModule {
  nn::BatchNorm1d norm{nullptr};
  Grouped() : BoringModule(0.3) { norm = register_module("norm", nn::BatchNorm1d(4)); }
  Tensor normed(const Tensor& x) { return forward(norm->forward(x)); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(normed(batch[0]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", at::mse_loss(normed(batch[0]), batch[1]));
    return {};
  }
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.04;
    options.parameters.groups = {{.pattern = "first.*"}};
    StepLR::Options steps;
    steps.step_size = 1;
    steps.gamma = 0.5;
    return {std::make_shared<AdamW>(options), SchedulerConfig{.scheduler = std::make_shared<StepLR>(steps)}};
  }
};

/// The weights and rates at the start of each epoch, and the frozen parameters of each batch.
struct AtStarts : Callback {
  std::shared_ptr<Finetuning> finetuning;
  std::vector<Weights> starts;
  std::vector<std::vector<double>> rates;
  std::vector<size_t> frozen;
  void on_train_epoch_start(RunContext& run) override { starts.push_back(weights(run.module())); }
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) override {
    frozen.push_back(finetuning->frozen().size());
    if (batch_idx > 0) return;
    rates.emplace_back();
    for (const ParamGroup& group : run.optimizers().at(0)->groups()) rates.back().push_back(group.lr);
  }
};

struct Finetuned {
  std::shared_ptr<Finetuning> callback;
  std::shared_ptr<AtStarts> seen = std::make_shared<AtStarts>();
  std::shared_ptr<LightningModule> module;
  FitReport report;
};

template <class Module = Grouped>
Finetuned train(const TemporaryFolder& folder, const Options& options, Settings settings = {},
                const Change& change = {}) {
  Finetuned run{.callback = std::make_shared<Finetuning>(options), .module = settings.module, .report = {}};
  run.seen->finetuning = run.callback;
  at::manual_seed(3);
  if (!run.module) run.module = settings.module = std::make_shared<Module>();
  settings.change = [&](TrainerOptions& o, TrainerComponents& components) {
    components.add(run.callback);
    components.add(run.seen);
    components.loggers = {std::make_shared<CsvLogger>()};
    if (change) change(o, components);
  };
  run.report = fit(folder, settings);
  return run;
}

std::string rows(const TemporaryFolder& folder) { return read_text(folder / "fulgur_logs/version_0/metrics.csv"); }

bool same(const Weights& a, const Weights& b, const char* name) { return a.at(name).equal(b.at(name)); }

}  // namespace

TEST_CASE("Finetuning: parameters that match freeze do not change until they are unfrozen") {
  const TemporaryFolder folder;
  const Finetuned run = train(
      folder, {.freeze = {"first.*"},
               .unfreeze = {{.pattern = "*.weight", .at = length("2ep")}, {.pattern = "*", .at = length("4ep")}}});
  const auto& starts = run.seen->starts;
  REQUIRE(starts.size() == 6);
  for (size_t epoch = 0; epoch + 1 < 6; ++epoch) {
    CAPTURE(epoch);
    CHECK(same(starts[epoch], starts[epoch + 1], "first.weight") == (epoch < 2));
    CHECK(same(starts[epoch], starts[epoch + 1], "first.bias") == (epoch < 4));
    CHECK_FALSE(same(starts[epoch], starts[epoch + 1], "second.weight"));
  }
  CHECK(run.seen->frozen.at(19) == 2);
  CHECK(run.seen->frozen.at(20) == 1);
  CHECK(run.seen->frozen.at(40) == 0);
}

TEST_CASE("Finetuning: the numbers are those of a callback that sets requires_grad by hand") {
  struct ByHand : Callback {
    void on_train_start(RunContext& run) override { set(run, false); }
    void on_train_epoch_start(RunContext& run) override {
      if (run.progress().epoch == 3) set(run, true);
    }
    static void set(RunContext& run, bool learns) {
      auto& module = run.module_as<Grouped>();
      for (Tensor& parameter : module.first->parameters()) parameter.set_requires_grad(learns);
    }
  };
  const TemporaryFolder folder, other;
  const Finetuned run =
      train(folder, {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("3ep")}}});
  at::manual_seed(3);
  const auto module = std::make_shared<Grouped>();
  fit(other,
      {.change = [](TrainerOptions&, TrainerComponents& c) { c.add(std::make_shared<ByHand>()); }, .module = module});
  CHECK(same_weights(weights(*run.module), weights(*module)));
}

TEST_CASE("Finetuning: lr is the rate of the groups from then on, with the factor of the schedule") {
  const TemporaryFolder folder;
  const Finetuned run =
      train(folder, {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("2ep"), .lr = 0.008}}});
  const auto& rates = run.seen->rates;
  REQUIRE(rates.size() == 6);
  REQUIRE(rates.front().size() == 2);
  // The first group has the parameters that no pattern matches.
  for (size_t epoch = 0; epoch < 6; ++epoch) {
    CAPTURE(epoch);
    const double factor = 1.0 / static_cast<double>(1 << epoch);
    CHECK(rates[epoch][0] == Approx(0.04 * factor));
    CHECK(rates[epoch][1] == Approx((epoch < 2 ? 0.04 : 0.008) * factor));
  }
}

TEST_CASE("Finetuning: the entry that took effect last gives the rate, whatever their order in the list is") {
  const TemporaryFolder folder;
  const Options options{.freeze = {"first.*"},
                        .unfreeze = {{.pattern = "first.*", .at = length("3ep"), .lr = 0.002},
                                     {.pattern = "first.*", .at = length("1ep"), .lr = 0.008}}};
  const Finetuned run = train(folder, options);
  CHECK(run.seen->rates.at(2).at(1) == Approx(0.008 / 4));
  CHECK(run.seen->rates.at(5).at(1) == Approx(0.002 / 32));
}

TEST_CASE("Finetuning: lr survives a rollback to a checkpoint from before it") {
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 15;
  const TemporaryFolder folder;
  const Finetuned run = train<DivergingOnce<Grouped, 22>>(
      folder, {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("2ep"), .lr = 0.008}}},
      {.saving = saving}, [](TrainerOptions& o, TrainerComponents&) { o.on_nonfinite = OnNonFinite::rollback; });
  // The schedule returned to the second epoch, so the factor is that of one epoch less.
  CHECK(run.seen->rates.at(2).at(1) == Approx(0.008 / 4));
  CHECK(run.seen->rates.at(3).at(0) == Approx(0.04 / 4));
  CHECK(run.seen->rates.at(3).at(1) == Approx(0.008 / 4));
  CHECK(run.seen->frozen.back() == 0);
}

TEST_CASE("Finetuning: lr survives a resume that takes the rates of the config") {
  const Options options{.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("2ep"), .lr = 0.008}}};
  const TemporaryFolder folder;
  train(folder, options, {.ends_at = 30, .by_signal = false});
  const Finetuned resumed =
      train(folder, options, {.from = "auto"},
            [](TrainerOptions&, TrainerComponents& components) { components.load.allow_config_change = true; });
  REQUIRE(resumed.seen->rates.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    const double factor = 1.0 / static_cast<double>(1 << (3 + i));
    CHECK(resumed.seen->rates[i][0] == Approx(0.04 * factor));
    CHECK(resumed.seen->rates[i][1] == Approx(0.008 * factor));
  }
}

TEST_CASE("Finetuning: a change waits for the start of an accumulation window") {
  const TemporaryFolder folder;
  const Finetuned run =
      train(folder, {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("8sa")}}}, {},
            [](TrainerOptions& o, TrainerComponents&) { o.accumulate_grad_batches = 3; });
  // Eight samples are seen after two of the three batches of the first window.
  CHECK(run.seen->frozen.at(2) == 2);
  CHECK(run.seen->frozen.at(3) == 0);
}

TEST_CASE("Finetuning: a run that is killed or gets a signal, and is resumed, has the bits of a quiet one") {
  const bool by_signal = GENERATE(true, false);
  const int accumulation = GENERATE(1, 3);
  CAPTURE(by_signal, accumulation);
  const Options options{.freeze = {"first.*", "norm.*"},
                        .unfreeze = {{.pattern = "norm.*", .at = length("12sa")},
                                     {.pattern = "first.*", .at = length("2ep"), .lr = 0.008}},
                        .train_bn = false};
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 1;
  saving.save_top_k = 0;
  const Change change = [&](TrainerOptions& o, TrainerComponents&) { o.accumulate_grad_batches = accumulation; };
  const TemporaryFolder quiet_folder;
  const Finetuned quiet_run = train(quiet_folder, options, {.saving = saving}, change);
  for (const int64_t batch : {4, 10, 20, 24, 25, 59}) {
    CAPTURE(batch);
    const TemporaryFolder folder;
    train(folder, options, {.ends_at = batch, .by_signal = by_signal, .saving = saving}, change);
    const Finetuned resumed = train(folder, options, {.from = "auto", .saving = saving}, change);
    CHECK(same_weights(weights(*resumed.module), weights(*quiet_run.module)));
    CHECK(rows(folder) == rows(quiet_folder));
  }
}

namespace {

/// Its schedule computes other last bits than the product of a rate and the factor of the schedule so far.
struct Slower : Grouped {
  OptimizerPlan configure_optimizers() override {
    OptimizerPlan plan = Grouped::configure_optimizers();
    StepLR::Options steps;
    steps.step_size = 1;
    steps.gamma = 0.9;
    plan.optimizers.front().scheduler = SchedulerConfig{.scheduler = std::make_shared<StepLR>(steps)};
    return plan;
  }
};

/// The rate of the second group in each batch.
struct RatesOfBatches : Callback {
  std::map<int64_t, double> rates;
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    rates[run.progress().batches_total.completed] = run.optimizers().at(0)->groups().at(1).lr;
  }
};

}  // namespace

TEST_CASE("Finetuning: a run that resumes inside an epoch has the bits of the rates that it had") {
  const Options options{.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("2ep"), .lr = 0.007}}};
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 1;
  const TemporaryFolder quiet_folder, folder;
  const auto quiet = std::make_shared<RatesOfBatches>(), resumed = std::make_shared<RatesOfBatches>();
  const auto with = [](const std::shared_ptr<RatesOfBatches>& rates) {
    return [rates](TrainerOptions&, TrainerComponents& components) { components.add(rates); };
  };
  train<Slower>(quiet_folder, options, {.saving = saving}, with(quiet));
  train<Slower>(folder, options, {.ends_at = 24, .by_signal = false, .saving = saving});
  train<Slower>(folder, options, {.from = "auto", .saving = saving}, with(resumed));
  REQUIRE(resumed->rates.size() == 36);
  for (const auto& [batch, rate] : resumed->rates) {
    CAPTURE(batch);
    CHECK(rate == quiet->rates.at(batch));
  }
  CHECK(resumed->rates.begin()->second != 0.007 * std::pow(0.9, 2.0));
}

TEST_CASE("Finetuning: train_bn says whether batch norms that match freeze are trained") {
  const bool train_bn = GENERATE(true, false);
  CAPTURE(train_bn);
  const TemporaryFolder folder;
  const Finetuned run = train(folder, {.freeze = {"norm.*", "first.*"},
                                       .unfreeze = {{.pattern = "first.*", .at = length("1ep")}},
                                       .train_bn = train_bn});
  const auto& starts = run.seen->starts;
  for (const char* name : {"norm.weight", "norm.running_mean", "norm.num_batches_tracked"}) {
    CAPTURE(name);
    CHECK(same(starts.front(), starts.back(), name) == !train_bn);
  }
  // After the run, the module is as it was.
  const auto module = std::dynamic_pointer_cast<Grouped>(run.module);
  CHECK(module->norm->is_training());
  for (const Tensor& parameter : module->parameters()) CHECK(parameter.requires_grad());
}

TEST_CASE("Finetuning: a batch norm that is unfrozen updates its statistics") {
  const TemporaryFolder folder;
  const Finetuned run = train(
      folder, {.freeze = {"norm.*"}, .unfreeze = {{.pattern = "norm.*", .at = length("2ep")}}, .train_bn = false});
  const auto& starts = run.seen->starts;
  CHECK(same(starts[0], starts[2], "norm.running_mean"));
  CHECK_FALSE(same(starts[2], starts[3], "norm.running_mean"));
}

TEST_CASE("Finetuning: parameters that the user has frozen stay frozen") {
  struct Fixed : Grouped {
    Fixed() { first->bias.set_requires_grad(false); }
  };
  const TemporaryFolder folder;
  const Finetuned run =
      train<Fixed>(folder, {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("1ep")}}});
  const auto& starts = run.seen->starts;
  CHECK_FALSE(same(starts[1], starts[2], "first.weight"));
  CHECK(same(starts.front(), starts.back(), "first.bias"));
}

TEST_CASE("Finetuning: invalid options are errors") {
  const auto error = [](const Options& options) {
    return message_of<ConfigError>([&] {
      const TemporaryFolder folder;
      train(folder, options);
    });
  };
  CHECK_THAT(error({}), ContainsSubstring("freeze must not be empty"));
  CHECK_THAT(error({.freeze = {"*"}, .unfreeze = {{.pattern = "*", .at = length("5min")}}}),
             ContainsSubstring("must be a position in ep, st, sa, tok or dur; got 5min"));
  CHECK_THAT(error({.freeze = {"zzzzzzzz.*"}}),
             ContainsSubstring("the pattern 'zzzzzzzz.*' matches none. The parameters are ") &&
                 ContainsSubstring("first.weight"));
  CHECK_THAT(error({.freeze = {"*"}, .train_bn = false}),
             ContainsSubstring("no parameter requires a gradient, since it freezes 6 of 6. Leave out the patterns"));
  CHECK_THAT(error({.freeze = {"frist.*"}}), ContainsSubstring("the pattern 'frist.*' matches none"));
  CHECK_THAT(error({.freeze = {"first.*"}, .unfreeze = {{.pattern = "second.*", .at = length("1ep")}}}),
             ContainsSubstring("unfreeze must match a frozen parameter; the pattern 'second.*' matches none"));
  CHECK_THAT(error({.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.bias", .at = length("1ep"), .lr = 0.1}}}),
             ContainsSubstring("a group of AdamW also has 'first.weight'"));
  CHECK_THAT(error({.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("5tok")}}}),
             ContainsSubstring("num_tokens"));
  struct Partial : Grouped {
    OptimizerPlan configure_optimizers() override {
      auto optimizer = std::make_shared<SGD>(SGD::Options{.lr = 0.1});
      optimizer->attach(parameter_groups(*this, "second."));
      return optimizer;
    }
  };
  CHECK_THAT(message_of<ConfigError>([] {
               const TemporaryFolder folder;
               train<Partial>(folder,
                              {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("1ep")}}});
             }),
             ContainsSubstring("none has 'first."));
}

TEST_CASE("Finetuning: positions that the fit did not reach are reported") {
  const auto lines_of = [](const char* first, const char* second) {
    const TemporaryFolder folder;
    std::string lines;
    Settings settings;
    settings.module = std::make_shared<Grouped>();
    settings.change = [&](TrainerOptions&, TrainerComponents& components) {
      components.add(
          std::make_shared<Finetuning>(Options{.freeze = {"first.*"},
                                               .unfreeze = {{.pattern = "first.bias", .at = length(first)},
                                                            {.pattern = "first.weight", .at = length(second)}}}));
    };
    fit(folder, settings, &lines);
    return lines;
  };
  // Six epochs.
  CHECK_THAT(lines_of("2ep", "50ep"),
             ContainsSubstring("after 60 steps in 6 epochs, before it unfroze 'first.weight' at "
                               "50ep. Those parameters were not trained"));
  CHECK_THAT(lines_of("2ep", "5ep"), !ContainsSubstring("finetuning.not_unfrozen"));
}

TEST_CASE("Finetuning: lr is refused with a schedule that ignores the rates of groups") {
  struct Scheduled : Grouped {
    std::shared_ptr<LrScheduler> schedule;
    OptimizerPlan configure_optimizers() override {
      OptimizerPlan plan = Grouped::configure_optimizers();
      plan.optimizers.front().scheduler = SchedulerConfig{.scheduler = schedule, .interval = ScheduleInterval::step};
      return plan;
    }
  };
  const auto fit_with = [](const std::shared_ptr<LrScheduler>& schedule, std::optional<double> lr) {
    const auto module = std::make_shared<Scheduled>();
    module->schedule = schedule;
    const TemporaryFolder folder;
    return train(folder, {.freeze = {"first.*"}, .unfreeze = {{.pattern = "first.*", .at = length("2ep"), .lr = lr}}},
                 {.module = module});
  };
  OneCycleLR::Options cycle;
  cycle.cycle_momentum = false;
  CyclicLR::Options triangles;
  triangles.cycle_momentum = false;
  const auto one_cycle = [&] { return std::make_shared<OneCycleLR>(cycle); };
  const auto refusal = [&](const std::shared_ptr<LrScheduler>& schedule) {
    return message_of<ConfigError>([&] { fit_with(schedule, 0.008); });
  };
  const auto because = ContainsSubstring("the schedule of AdamW sets them itself");
  CHECK_THAT(refusal(one_cycle()), because);
  CHECK_THAT(refusal(std::make_shared<CyclicLR>(triangles)), because);
  CHECK_NOTHROW(fit_with(one_cycle(), std::nullopt));
  // A warm-up that begins at 0 follows the groups.
  CHECK_NOTHROW(fit_with(
      std::make_shared<LambdaLR>([](int64_t step) { return std::min(1.0, static_cast<double>(step) / 10); }), 0.008));
}

TEST_CASE("Finetuning: a fit resumes with as many entries as the checkpoint has") {
  Finetuning one({.freeze = {"*"}, .unfreeze = {{.pattern = "*", .at = length("1ep")}}});
  const Finetuning none({.freeze = {"*"}});
  CHECK_THAT(message_of<CheckpointError>([&] { one.load_state(none.state()); }),
             ContainsSubstring("the checkpoint has 0, the options have 1"));
}

}  // namespace finetuning_test
