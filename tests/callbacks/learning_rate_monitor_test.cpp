#include "fulgur/callbacks/learning_rate_monitor.h"

#include <ATen/ops/zeros.h>

#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "support/expect_error.h"
#include "support/fake_run_context.h"

namespace learning_rate_monitor_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

using Values = std::vector<std::pair<int64_t, double>>;
using Keys = std::vector<std::string>;

struct Planned : BoringModule {
  std::function<OptimizerPlan(Planned&)> plan;
  bool manual = false;
  OptimizerPlan configure_optimizers() override { return plan(*this); }
  bool automatic_optimization() const override { return !manual; }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (!manual) return BoringModule::training_step(batch, batch_idx);
    manual_backward(at::mse_loss(forward(batch[0]), batch[1]));
    optimizers(0).step();
    optimizers(0).zero_grad();
    return {};
  }
  ParamGroup group(torch::nn::Linear& layer, std::string name = {}) {
    return {.name = std::move(name),
            .params = {layer->weight, layer->bias},
            .names = {cat(name, "weight"), cat(name, "bias")}};
  }
};

std::shared_ptr<SGD> sgd() { return std::make_shared<SGD>(SGD::Options{.lr = 0.05}); }

// A schedule that makes the rate a tenth each time it steps.
SchedulerConfig tenth(ScheduleInterval interval, std::string name = {}) {
  return {.scheduler = std::make_shared<ExponentialLR>(ExponentialLR::Options{.gamma = 0.1}),
          .interval = interval,
          .name = std::move(name)};
}

struct Logged {
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::shared_ptr<LearningRateMonitor> monitor;
};

// Two epochs of four steps.
Logged train(LearningRateMonitor::Options options, std::function<OptimizerPlan(Planned&)> plan, bool manual = false,
             int64_t every = 2) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.max_epochs = 2;
  trainer_options.log_every_n_steps = every;
  Logged logged;
  logged.monitor = std::make_shared<LearningRateMonitor>(options);
  TrainerComponents components;
  components.loggers = {logged.logger};
  components.add(logged.monitor);
  auto module = std::make_shared<Planned>();
  module->plan = std::move(plan);
  module->manual = manual;
  Trainer(trainer_options, components).fit(module, regression_data(16, 4));
  return logged;
}

void check(const Values& got, const Values& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].first == wanted[i].first);
    CHECK(got[i].second == Approx(wanted[i].second));
  }
}

}  // namespace

TEST_CASE("LearningRateMonitor logs as often as the schedule changes the rate") {
  SECTION("by steps: the rate of the row's last step") {
    const Logged logged = train({}, [](Planned&) { return OptimizerPlan(sgd(), tenth(ScheduleInterval::step)); });
    check(logged.logger->values("lr-SGD"), {{2, 5e-3}, {4, 5e-5}, {6, 5e-7}, {8, 5e-9}});
  }
  SECTION("by epochs") {
    const Logged logged = train({}, [](Planned&) { return OptimizerPlan(sgd(), tenth(ScheduleInterval::epoch)); });
    check(logged.logger->values("lr-SGD"), {{4, 5e-2}, {8, 5e-3}});
  }
  SECTION("without a schedule: by steps, since the module may change it") {
    const Logged logged = train(
        {}, [](Planned&) { return OptimizerPlan(sgd()); }, false, 4);
    check(logged.logger->values("lr-SGD"), {{4, 5e-2}, {8, 5e-2}});
  }
}

TEST_CASE("LearningRateMonitor: logging_interval wins over the schedule's") {
  const Logged by_step = train({.logging_interval = ScheduleInterval::step},
                               [](Planned&) { return OptimizerPlan(sgd(), tenth(ScheduleInterval::epoch)); });
  check(by_step.logger->values("lr-SGD"), {{2, 5e-2}, {4, 5e-2}, {6, 5e-3}, {8, 5e-3}});
  const Logged by_epoch = train({.logging_interval = ScheduleInterval::epoch},
                                [](Planned&) { return OptimizerPlan(sgd(), tenth(ScheduleInterval::step)); });
  check(by_epoch.logger->values("lr-SGD"), {{4, 5e-2}, {8, 5e-6}});  // that with which the epoch began
}

TEST_CASE("LearningRateMonitor: keys of groups, optimizers and schedules") {
  const auto groups = [](std::string first, std::string second) {
    return [=](Planned& module) -> OptimizerPlan {
      auto optimizer = sgd();
      std::vector<ParamGroup> list{module.group(module.first, first), module.group(module.second, second)};
      for (size_t g = 0; g < list.size(); ++g) list[g].names = {cat("w", g), cat("b", g)};
      list[1].lr = 0.5;
      optimizer->attach(std::move(list));
      return optimizer;
    };
  };
  const Logged plain = train({}, groups("", ""));
  CHECK(plain.monitor->keys() == Keys{"lr-SGD/pg1", "lr-SGD/pg2"});
  CHECK(plain.logger->values("lr-SGD/pg1").back().second == Approx(0.05));
  CHECK(plain.logger->values("lr-SGD/pg2").back().second == Approx(0.5));
  CHECK(train({}, groups("body", "")).monitor->keys() == Keys{"lr-SGD/body", "lr-SGD/pg2"});
  CHECK(train({.log_key_prefix = "opt."}, groups("body", "head")).monitor->keys() ==
        Keys{"opt.lr-SGD/body", "opt.lr-SGD/head"});
  CHECK_THAT(message_of<ConfigError>([&] { train({}, groups("same", "same")); }),
             ContainsSubstring("two parameter groups have the key 'lr-SGD/same'"));

  const Logged named =
      train({}, [](Planned&) { return OptimizerPlan(sgd(), tenth(ScheduleInterval::step, "warmup")); });
  CHECK(named.monitor->keys() == Keys{"warmup"});
  CHECK(named.logger->values("warmup").size() == 4);

  const auto two = [](std::string name) {
    return [=](Planned& module) {
      auto first = sgd(), second = sgd();
      auto third = std::make_shared<AdamW>(AdamW::Options());
      ParamGroup body = module.group(module.first), head = module.group(module.second), extra = head;
      head.params.pop_back(), head.names.pop_back();
      extra.params.erase(extra.params.begin()), extra.names.erase(extra.names.begin());
      first->attach({body});
      second->attach({head});
      third->attach({extra});
      PlannedOptimizer planned{second, std::nullopt};
      if (!name.empty()) planned.scheduler = tenth(ScheduleInterval::epoch, name);
      return OptimizerPlan::several({{first, {}}, planned, {third, {}}});
    };
  };
  CHECK(train({}, two(""), true).monitor->keys() == Keys{"lr-SGD", "lr-SGD-1", "lr-AdamW"});
  CHECK(train({}, two("head"), true).monitor->keys() == Keys{"lr-SGD", "head", "lr-AdamW"});
}

TEST_CASE("LearningRateMonitor: log_weight_decay logs that of each group") {
  const auto planned = [](Planned&) {
    AdamW::Options options;
    options.weight_decay = 0.25;
    return OptimizerPlan(std::make_shared<AdamW>(options));
  };
  CHECK(train({}, planned).logger->values("lr-AdamW-weight_decay").empty());
  check(train({.logging_interval = ScheduleInterval::epoch, .log_weight_decay = true}, planned)
            .logger->values("lr-AdamW-weight_decay"),
        {{4, 0.25}, {8, 0.25}});
}

TEST_CASE("LearningRateMonitor: log_momentum logs the current momentum, for optimizers that have one") {
  struct Plain final : Optimizer {
    double default_lr() const override { return 0.1; }
    std::string name() const override { return "Plain"; }
    void step(const std::optional<Tensor>&) override {}
    StateTree parameter_state(const Tensor&) const override { return {}; }
    void load_parameter_state(const Tensor&, const StateTree&) override {}
    void check_parameter_state(const std::string&, const Tensor&, const StateTree&) const override {}
  };
  const auto with_momentum = [](Planned&) {
    return OptimizerPlan(std::make_shared<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9}));
  };
  CHECK(train({}, with_momentum).logger->values("lr-SGD-momentum").empty());
  const Logged logged = train({.log_momentum = true, .log_key_prefix = "o."}, with_momentum);
  check(logged.logger->values("o.lr-SGD-momentum"), {{2, 0.9}, {4, 0.9}, {6, 0.9}, {8, 0.9}});
  const Logged adam = train({.logging_interval = ScheduleInterval::epoch, .log_momentum = true},
                            [](Planned&) { return OptimizerPlan(std::make_shared<AdamW>(AdamW::Options())); });
  check(adam.logger->values("lr-AdamW-momentum"), {{4, 0.9}, {8, 0.9}});
  const Logged none = train({.log_momentum = true}, [](Planned&) { return OptimizerPlan(std::make_shared<Plain>()); });
  CHECK(none.logger->values("lr-Plain").size() == 4);
  CHECK(none.logger->values("lr-Plain-momentum").empty());
}

TEST_CASE("LearningRateMonitor: which hook logs which rate") {
  FakeRunContext run;
  const auto optimizer = [](std::string group) {
    auto made = sgd();
    made->attach({{.name = std::move(group), .params = {at::zeros({2})}, .names = {"w"}}});
    return made;
  };
  const auto first = optimizer(""), second = optimizer("head"), third = optimizer("");
  run.plan = OptimizerPlan::several(
      {{first, tenth(ScheduleInterval::epoch)}, {second, tenth(ScheduleInterval::step)}, {third, std::nullopt}});
  LearningRateMonitor monitor({});
  monitor.on_train_start(run);
  CHECK(monitor.keys() == Keys{"lr-SGD", "lr-SGD-1/head", "lr-SGD-2"});
  CHECK(run.logged.empty());
  second->groups()[0].lr = 0.25;
  monitor.on_train_epoch_start(run);
  REQUIRE(run.logged.size() == 1);
  CHECK(run.logged[0].name == "lr-SGD");
  CHECK(run.logged[0].value == 0.05);
  run.logged.clear();
  monitor.on_train_batch_start(run, {}, 0);
  REQUIRE(run.logged.size() == 2);
  CHECK(run.logged[0].name == "lr-SGD-1/head");
  CHECK(run.logged[0].value == 0.25);
  CHECK(run.logged[1].name == "lr-SGD-2");
  CHECK(run.logged[1].value == 0.05);
}

}  // namespace learning_rate_monitor_test
