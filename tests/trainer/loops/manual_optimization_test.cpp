// Modules with manual optimization, and the forms of configure_optimizers.
#include "trainer/boring.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/optim/composed_schedules.h"
#include "fulgur/optim/reduce_lr_on_plateau.h"
#include "fulgur/strategies/single_device.h"

namespace manual_optimization_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// Two parts with an optimizer each, as in a GAN: one looks at what the other makes.
struct TwoParts : LightningModule {
  torch::nn::Linear maker{nullptr}, judge{nullptr};
  TwoParts() {
    maker = register_module("maker", torch::nn::Linear(4, 4));
    judge = register_module("judge", torch::nn::Linear(4, 2));
  }
  bool automatic_optimization() const override { return false; }
  Tensor maker_loss(const Batch& b) { return at::mse_loss(judge->forward(maker->forward(b[0])), b[1]); }
  Tensor judge_loss(const Batch& b) { return at::mse_loss(judge->forward(maker->forward(b[0]).detach()), -b[1]); }
  OptimizerPlan configure_optimizers() override {
    auto a = std::make_shared<AdamW>(parameter_groups(*this, "maker."), AdamW::Options{.lr = 0.01});
    auto b = std::make_shared<SGD>(parameter_groups(*this, "judge."), SGD::Options{.lr = 0.05, .momentum = 0.9});
    return OptimizerPlan::several(
        {{a, SchedulerConfig{.scheduler = std::make_shared<ExponentialLR>(ExponentialLR::Options{.gamma = 0.99})}},
         {b, {}}});
  }
  StepOutput training_step(const Batch& batch, int64_t i) override {
    auto [make, look] = optimizers<2>();
    {
      const auto only = toggled(make);
      const Tensor loss = maker_loss(batch);
      log("maker_loss", loss);
      manual_backward(loss);
      clip_gradients(make.optimizer(), 0.1);
      make.step();
      make.zero_grad();
      lr_schedulers(0).step();
    }
    if (i % 2 == 0) return {};  // the judge learns on every second batch
    const Tensor loss = judge_loss(batch);
    manual_backward(loss);
    look.step();
    look.zero_grad();
    return {};
  }
};

std::map<std::string, Tensor> by_hand(int64_t batches) {
  at::manual_seed(9);
  TwoParts net;
  AdamW a(parameter_groups(net, "maker."), {.lr = 0.01});
  SGD b(parameter_groups(net, "judge."), {.lr = 0.05, .momentum = 0.9});
  const Batch data = regression(batches * 4, 1);
  double lr = 0.01;
  for (int64_t i = 0; i < batches; ++i) {
    const Batch batch = data.narrow(i * 4, 4);
    net.maker_loss(batch).backward();
    clip_grad_norm(a.gradients(), 0.1);
    a.step();
    a.zero_grad();
    b.zero_grad();  // what the maker's loss left there
    a.groups()[0].lr = lr = 0.01 * std::pow(0.99, static_cast<double>(i + 1));
    if (i % 2 == 0) continue;
    net.judge_loss(batch).backward();
    b.step();
    b.zero_grad();
  }
  return weights(net);
}

}  // namespace

TEST_CASE("two optimizers in manual optimization equal a hand-written loop, bit for bit") {
  TemporaryFolder folder;
  at::manual_seed(9);
  auto module = std::make_shared<TwoParts>();
  const FitReport report = Trainer(quiet(folder)).fit(module, regression_data(40, 0, 4, false));
  // One training step per batch, however many optimizers stepped in it.
  CHECK(report.global_step == 10);
  CHECK(same_weights(weights(*module), by_hand(10)));
}

TEST_CASE("a hook that is given an optimizer can say which of several it is") {
  struct Which : Callback {
    std::vector<std::string> seen;
    void on_before_optimizer_step(RunContext& run, Optimizer& optimizer) override {
      seen.push_back(std::to_string(run.optimizer_index(optimizer)) + " " + optimizer.name());
      SGD other(SGD::Options{});
      CHECK_THROWS_WITH(run.optimizer_index(other), ContainsSubstring("SGD is not one of the 2 optimizers"));
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.limit_train_batches = 2;
  const auto which = std::make_shared<Which>();
  TrainerComponents components;
  components.add(which);
  Trainer(options, components).fit(std::make_shared<TwoParts>(), regression_data(40, 0, 4, false));
  CHECK(which->seen == std::vector<std::string>{"0 AdamW", "0 AdamW", "1 SGD"});
}

TEST_CASE("each optimizer counts its own steps, also over a resume") {
  struct Counts : TwoParts {
    int64_t maker_steps = 0, judge_steps = 0;
    void on_train_end() override {
      maker_steps = optimizers(0).steps();
      judge_steps = optimizers(1).steps();
      CHECK(optimizers<SGD>(1).name() == "SGD");
      CHECK_THROWS_WITH(optimizers<SGD>(0), ContainsSubstring("AdamW"));
      CHECK_THROWS_WITH(optimizers(2), ContainsSubstring("planned 2"));
      CHECK_THROWS_WITH(lr_schedulers(1), ContainsSubstring("no schedule 1"));
    }
  };
  TemporaryFolder folder;
  auto whole = std::make_shared<Counts>();
  at::manual_seed(9);
  whole = std::make_shared<Counts>();
  Trainer(quiet(folder)).fit(whole, regression_data(40, 0, 4, false));
  CHECK(whole->maker_steps == 10);
  CHECK(whole->judge_steps == 5);

  TrainerOptions options = quiet(folder);
  options.max_steps = 5;
  at::manual_seed(9);
  auto first = std::make_shared<Counts>();
  const FitReport report = Trainer(options).fit(first, regression_data(40, 0, 4, false));
  options.max_steps = -1;
  auto second = std::make_shared<Counts>();
  Trainer(options).fit(second, regression_data(40, 0, 4, false), report.last_checkpoint->string());
  CHECK(second->maker_steps == 10);
  CHECK(second->judge_steps == 5);
  CHECK(same_weights(weights(*whole), weights(*second)));
}

TEST_CASE("toggled, manual_backward(loss, optimizer) and zero_grad touch one optimizer's parameters only") {
  struct Looks : TwoParts {
    StepOutput training_step(const Batch& batch, int64_t) override {
      OptimizerHandle& make = optimizers(0);
      {
        const auto only = toggled(make);
        CHECK_FALSE(judge->weight.requires_grad());
        CHECK(maker->weight.requires_grad());
        manual_backward(maker_loss(batch));
      }
      CHECK(judge->weight.requires_grad());
      CHECK(maker->weight.grad().defined());
      CHECK_FALSE(judge->weight.grad().defined());
      make.zero_grad();
      manual_backward(maker_loss(batch));
      CHECK(judge->weight.grad().defined());
      make.zero_grad();
      CHECK_FALSE(maker->weight.grad().defined());
      CHECK(judge->weight.grad().defined());
      optimizers(1).zero_grad();
      const Tensor loss = maker_loss(batch);
      manual_backward(loss, make, {.retain_graph = true});
      CHECK_FALSE(judge->weight.grad().defined());
      const Tensor once = maker->weight.grad().clone();
      manual_backward(loss, make);
      CHECK(maker->weight.grad().allclose(2 * once));
      make.step();
      make.zero_grad();
      return {};
    }
  };
  TemporaryFolder folder;
  CHECK(Trainer(quiet(folder)).fit(std::make_shared<Looks>(), regression_data(8, 0)).global_step == 2);
}

TEST_CASE("no_sync keeps gradients of manual backwards to the rank") {
  struct Syncs : Strategy {
    SingleDeviceStrategy inner;
    std::vector<bool> synced;
    std::string name() const override { return "syncs"; }
    void configure(StrategySetup setup) override { inner.configure(std::move(setup)); }
    at::Device device() const override { return inner.device(); }
    int64_t rank() const override { return 0; }
    int64_t world_size() const override { return 1; }
    Collectives& collectives() override { return inner.collectives(); }
    Precision& precision() override { return inner.precision(); }
    void attach(LightningModule& m) override { inner.attach(m); }
    void batch_to_device(LightningModule& m, DataModule* d, Batch& b, int64_t l) override {
      inner.batch_to_device(m, d, b, l);
    }
    void backward(LightningModule& m, const Tensor& loss, GradSync sync, const BackwardOptions& o) override {
      synced.push_back(sync == GradSync::now);
      inner.backward(m, loss, sync, o);
    }
    void optimizer_step(Optimizer& o, const Closure& c, const std::optional<Tensor>& f) override {
      inner.optimizer_step(o, c, f);
    }
  };
  struct Accumulates : TwoParts {
    StepOutput training_step(const Batch& batch, int64_t) override {
      {
        const auto alone = no_sync();
        manual_backward(maker_loss(batch));
      }
      manual_backward(maker_loss(batch));
      optimizers(0).step();
      optimizers(0).zero_grad();
      return {};
    }
  };
  TemporaryFolder folder;
  auto strategy = std::make_shared<Syncs>();
  TrainerComponents components;
  components.strategy = strategy;
  Trainer(quiet(folder), components).fit(std::make_shared<Accumulates>(), regression_data(8, 0));
  CHECK(strategy->synced == std::vector<bool>{false, true, false, true});
}

TEST_CASE("what belongs to automatic optimization is refused in manual, and vice versa") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accumulate_grad_batches = 2;
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<TwoParts>(), regression_data()),
                    ContainsSubstring("accumulate_grad_batches") && ContainsSubstring("training_step"));
  options = quiet(folder);
  options.gradient_clip_val = 1.0;
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<TwoParts>(), regression_data()),
                    ContainsSubstring("clip_gradients"));

  struct Backward : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t) override {
      const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
      manual_backward(loss);
      return loss;
    }
  };
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<Backward>(), regression_data()),
                    ContainsSubstring("automatic optimization"));
  struct StepsAlone : SelfPlanned {
    void on_train_epoch_start() override { optimizers().step(); }
  };
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<StepsAlone>(), regression_data()),
                    ContainsSubstring("the Trainer steps the optimizer"));
}

TEST_CASE("a module without optimizer: its training steps run, nothing changes") {
  struct None : SelfPlanned {
    int64_t steps = 0;
    OptimizerPlan configure_optimizers() override { return OptimizerPlan::none(); }
    StepOutput training_step(const Batch& b, int64_t i) override {
      ++steps;
      return SelfPlanned::training_step(b, i);
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<None>();
  const auto before = weights(*module);
  const FitReport report = Trainer(quiet(folder)).fit(module, regression_data(40, 0));
  CHECK(module->steps == 10);
  CHECK(report.global_step == 10);
  CHECK(same_weights(before, weights(*module)));
  for (const auto& parameter : module->parameters()) CHECK_FALSE(parameter.grad().defined());
}

TEST_CASE("a scheduler's interval and frequency count over the run, the hook sees each step") {
  struct Scheduled : BoringModule {
    SchedulerConfig config;
    std::vector<int64_t> stepped_at;
    OptimizerPlan configure_optimizers() override {
      config.scheduler = std::make_shared<ExponentialLR>(ExponentialLR::Options{.gamma = 0.5});
      return {std::make_shared<SGD>(SGD::Options{.lr = 1e-4}), config};
    }
    void lr_scheduler_step(LrScheduler& scheduler, std::optional<double> metric) override {
      stepped_at.push_back(run().progress().global_step);
      BoringModule::lr_scheduler_step(scheduler, metric);
    }
  };
  const auto steps = [](ScheduleInterval interval, int64_t frequency) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 3;
    auto module = std::make_shared<Scheduled>();
    module->config = {.scheduler = nullptr, .interval = interval, .frequency = frequency};
    Trainer(options).fit(module, regression_data(20, 0));  // 5 batches
    return module->stepped_at;
  };
  CHECK(steps(ScheduleInterval::epoch, 1) == std::vector<int64_t>{5, 10, 15});
  CHECK(steps(ScheduleInterval::epoch, 2) == std::vector<int64_t>{10});
  // Not 4, 9, 14: the count does not start again in each epoch.
  CHECK(steps(ScheduleInterval::step, 4) == std::vector<int64_t>{4, 8, 12});
}

TEST_CASE("a schedule that follows a metric: monitor is needed, strict decides what a missing one is") {
  struct Follows : LrScheduler {
    std::vector<double> seen;
    bool wants_metric() const override { return true; }
    double lr_at(int64_t, double initial_lr) const override { return initial_lr; }
    void observe(int64_t, std::optional<double> metric) override {
      if (metric) seen.push_back(*metric);
    }
  };
  struct Scheduled : SelfPlanned {
    SchedulerConfig config;
    OptimizerPlan configure_optimizers() override { return {std::make_shared<SGD>(SGD::Options{.lr = 0.01}), config}; }
  };
  TemporaryFolder folder;
  const auto fit = [&](std::optional<std::string> monitor, bool strict) {
    auto module = std::make_shared<Scheduled>();
    auto schedule = std::make_shared<Follows>();
    module->config = {.scheduler = schedule, .monitor = std::move(monitor), .strict = strict};
    Trainer(quiet(folder)).fit(module, regression_data(8, 4));
    return schedule->seen.size();
  };
  CHECK(fit("val_loss", true) == 1);
  CHECK_THROWS_WITH(fit(std::nullopt, true), ContainsSubstring("name it with monitor"));
  CHECK_THROWS_WITH(fit("nothing", true),
                    ContainsSubstring("'nothing' was not logged") && ContainsSubstring("val_loss"));
  CHECK(fit("nothing", false) == 0);
}

TEST_CASE(
    "a schedule composed with one that follows a metric is as strict, and its other parts continue without the "
    "metric") {
  using TrainerComponents = std::vector<std::shared_ptr<LrScheduler>>;
  struct Scheduled : SelfPlanned {
    SchedulerConfig config;
    std::vector<double> rates;
    OptimizerPlan configure_optimizers() override { return {std::make_shared<SGD>(SGD::Options{.lr = 1e-3}), config}; }
    int on_train_batch_start(const Batch&, int64_t) override {
      rates.push_back(optimizers().optimizer().groups()[0].lr / 1e-3);
      return 0;
    }
  };
  const auto plateau = [] {
    return std::make_shared<ReduceLROnPlateau>(ReduceLROnPlateau::Options{.factor = 0.5, .patience = 0});
  };
  const auto rise = [] {
    return std::make_shared<LinearLR>(LinearLR::Options{.start_factor = 0.25, .total_iters = Auto<Length>(Length(3))});
  };
  struct Case {
    const char* name;
    std::function<std::shared_ptr<LrScheduler>()> make;
    std::vector<double> rates;  ///< without the metric, over that of the optimizer
  };
  const std::vector<Case> cases = {
      {"ReduceLROnPlateau", plateau, {1, 1, 1, 1}},
      {"WarmupLR",
       [&] { return std::make_shared<WarmupLR>(WarmupLR::Options{.length = 3, .start_factor = 0.25}, plateau()); },
       {0.25, 0.5, 0.75, 1}},
      {"SequentialLR",
       [&] {
         return std::make_shared<SequentialLR>(TrainerComponents{rise(), plateau()}, std::vector<Length>{3});
       },
       {0.25, 0.5, 0.75, 1}},
      {"ChainedScheduler",
       [&] {
         return std::make_shared<ChainedScheduler>(TrainerComponents{rise(), plateau()});
       },
       {0.25, 0.5, 0.75, 1}},
      {"WarmupLR around SequentialLR",
       [&] {
         return std::make_shared<WarmupLR>(
             WarmupLR::Options{.length = 3, .start_factor = 0.25},
             std::make_shared<SequentialLR>(TrainerComponents{plateau(), plateau()}, std::vector<Length>{1}));
       },
       {0.25, 0.5, 0.75, 1}},
  };
  TemporaryFolder folder;
  for (const Case& c : cases) {
    INFO(c.name);
    const auto fit = [&](std::optional<std::string> monitor, bool strict) {
      auto module = std::make_shared<Scheduled>();
      module->config = {
          .scheduler = c.make(), .interval = ScheduleInterval::step, .monitor = std::move(monitor), .strict = strict};
      Trainer(quiet(folder)).fit(module, regression_data(16, 0));
      return module->rates;
    };
    CHECK_THROWS_WITH(fit(std::nullopt, false), ContainsSubstring("name it with monitor"));
    CHECK_THROWS_AS(fit("val_loss", true), ConfigError);
    CHECK_THROWS_WITH(fit("val_loss", true), ContainsSubstring("'val_loss' was not logged") &&
                                                 ContainsSubstring("metrics are: ") && ContainsSubstring("train_loss"));
    std::string warnings;
    log::reset_warnings();
    log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                  &warnings);
    const std::vector<double> rates = fit("val_loss", false);
    log::set_sink(nullptr, nullptr);
    CHECK_THAT(warnings, ContainsSubstring("lr_scheduler.monitor_missing") && ContainsSubstring("'val_loss'") &&
                             ContainsSubstring("train_loss"));
    REQUIRE(rates.size() == c.rates.size());
    for (size_t i = 0; i < rates.size(); ++i) CHECK(std::abs(rates[i] - c.rates[i]) < 1e-12);
    CHECK_NOTHROW(fit("train_loss", true));
  }
}

TEST_CASE(
    "optimizer_step may be overridden: a step that is not made changes nothing, and gradients are zeroed anyway") {
  struct EverySecond : SelfPlanned {
    void optimizer_step(int64_t epoch, int64_t batch_idx, OptimizerHandle& optimizer, const Closure& closure) override {
      if (batch_idx % 2 == 1) SelfPlanned::optimizer_step(epoch, batch_idx, optimizer, closure);
    }
    void on_train_end() override { steps = optimizers().steps(); }
    int64_t steps = 0;
  };
  TemporaryFolder folder;
  auto module = std::make_shared<EverySecond>();
  Trainer(quiet(folder)).fit(module, regression_data(40, 0));
  CHECK(module->steps == 5);
  for (const auto& parameter : module->parameters()) CHECK_FALSE(parameter.grad().defined());
}

TEST_CASE("tied weights are stepped, counted and saved once") {
  struct Tied : LightningModule {
    torch::nn::Linear in{nullptr}, out{nullptr};
    Tied() {
      in = register_module("in", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
      out = register_module("out", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
      out->weight = in->weight;
      tie_parameters(*this, "in.weight", "out.weight");
    }
    StepOutput training_step(const Batch& b, int64_t) override {
      return out->forward(in->forward(b[0])).square().mean();
    }
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.1}); }
  };
  TemporaryFolder folder;
  at::manual_seed(2);
  auto module = std::make_shared<Tied>();
  const Tensor start = module->in->weight.detach().clone();
  const FitReport report = Trainer(quiet(folder)).fit(module, regression_data(4, 0, 4, false));
  // One step of plain gradient descent on the one tensor.
  Tensor w = start.clone().requires_grad_();
  const Batch data = regression(4, 1);
  at::matmul(at::matmul(data[0], w.t()), w.t()).square().mean().backward();
  CHECK(module->in->weight.allclose(w.detach() - 0.1 * w.grad()));
  CHECK(module->out->weight.is_same(module->in->weight));
  CHECK(unique_parameters(*module).size() == 1);
  CHECK(read_checkpoint(*report.last_checkpoint).module.size() == 1);
}

TEST_CASE("schedules of manual optimization are stepped by the module, including those that count epochs") {
  struct Watched : TwoParts {
    double lr = 0;
    void on_train_end() override { lr = optimizers(0).groups()[0].lr; }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  const auto module = std::make_shared<Watched>();
  Trainer(options).fit(module, regression_data(40, 0, 4, false));
  // One step a batch, which the module makes; the schedule's interval is an epoch.
  CHECK(module->lr == Catch::Approx(0.01 * std::pow(0.99, 20)).epsilon(1e-12));
}

TEST_CASE("a plateau schedule of manual optimization needs no monitor, and the Trainer does not step it") {
  struct Plateau : TwoParts {
    OptimizerPlan configure_optimizers() override {
      const SGD::Options slow{.lr = 0.01};
      auto a = std::make_shared<SGD>(parameter_groups(*this, "maker."), slow);
      auto b = std::make_shared<SGD>(parameter_groups(*this, "judge."), slow);
      return OptimizerPlan::several(
          {{a, SchedulerConfig{.scheduler = std::make_shared<ReduceLROnPlateau>(ReduceLROnPlateau::Options{})}},
           {b, {}}});
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      manual_backward(maker_loss(batch));
      optimizers(0).step();
      optimizers(0).zero_grad();
      return {};
    }
  };
  TemporaryFolder folder;
  CHECK_NOTHROW(Trainer(quiet(folder)).fit(std::make_shared<Plateau>(), regression_data(8, 0, 4, false)));
}

}  // namespace manual_optimization_test
