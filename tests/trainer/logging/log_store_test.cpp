#include "trainer/boring.h"

#include "logging/log_store.h"

#include <ATen/ops/scalar_tensor.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "fulgur/core/text/errors.h"

namespace log_store_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::LogScope;
using fulgur::detail::LogStore;

namespace {

Metrics step_values(LogStore& store) {
  SingleProcessCollectives one;
  return store.take(store.close_step_window(RunningStage::train), &one);
}

Metrics epoch_values(LogStore& store, RunningStage stage) {
  SingleProcessCollectives one;
  return store.take(store.close_epoch(stage), &one);
}

}  // namespace

TEST_CASE("step values are means of their window, weighted by samples") {
  LogStore store;
  store.log("loss", LogScope::train_step, RunningStage::train, 1.0, 3, {});
  store.log("loss", LogScope::train_step, RunningStage::train, 5.0, 1, {});
  CHECK(store.newest("loss") == 2.0);
  CHECK(step_values(store) == Metrics{{"loss", 2.0}});
  CHECK(step_values(store).empty());
  store.log("loss", LogScope::train_step, RunningStage::train, 7.0, 1, {});
  CHECK(step_values(store) == Metrics{{"loss", 7.0}});
}

TEST_CASE("both on_step and on_epoch fork the name") {
  LogStore store;
  const LogOptions options{.on_epoch = true};
  for (const double v : {1.0, 3.0}) {
    store.log("loss", LogScope::train_step, RunningStage::train, v, 1, options);
    (void)step_values(store);
  }
  CHECK(epoch_values(store, RunningStage::train) == Metrics{{"loss_epoch", 2.0}});
  CHECK(store.newest("loss_step") == 3.0);
  CHECK(store.newest("loss") == 2.0);
}

TEST_CASE("sums, minima and maxima, and NaN is never dropped") {
  LogStore store;
  for (const double v : {2.0, -1.0, 4.0}) {
    store.log("sum", LogScope::evaluation_step, RunningStage::validate, v, 9, {.reduce_fx = Reduce::sum});
    store.log("min", LogScope::evaluation_step, RunningStage::validate, v, 9, {.reduce_fx = Reduce::min});
    store.log("max", LogScope::evaluation_step, RunningStage::validate, v, 9, {.reduce_fx = Reduce::max});
  }
  CHECK(epoch_values(store, RunningStage::validate) == Metrics{{"sum", 5.0}, {"min", -1.0}, {"max", 4.0}});
  for (const double v : std::vector<double>{1.0, std::nan(""), 0.5})
    store.log("bad", LogScope::evaluation_step, RunningStage::validate, v, 1, {.reduce_fx = Reduce::min});
  CHECK(std::isnan(store.newest("max").value() * epoch_values(store, RunningStage::validate)[0].second));
}

TEST_CASE("what cannot be logged is an error that says why") {
  LogStore store;
  CHECK_THROWS_WITH(store.log("v", LogScope::train_step, RunningStage::train, at::randn({3}), 1, {}),
                    ContainsSubstring("must be a scalar"));
  CHECK_THROWS_WITH(store.log("v", LogScope::train_step, RunningStage::train, Tensor(), 1, {}),
                    ContainsSubstring("undefined"));
  CHECK_THROWS_WITH(store.log("v", LogScope::forbidden, RunningStage::train, 1.0, 1, {}),
                    ContainsSubstring("cannot be logged from this hook"));
  CHECK_THROWS_WITH(store.log("v", LogScope::train_epoch, RunningStage::train, 1.0, 1, {.on_step = true}),
                    ContainsSubstring("on_step is impossible"));
  CHECK_THROWS_WITH(store.log("v", LogScope::train_step, RunningStage::train, 1.0, 1, {.on_step = false}),
                    ContainsSubstring("never appear"));
  store.log("w", LogScope::train_step, RunningStage::train, 1.0, 1, {});
  CHECK_THROWS_WITH(store.log("w", LogScope::train_step, RunningStage::train, 1.0, 1, {.prog_bar = true}),
                    ContainsSubstring("other options"));
}

TEST_CASE("a tensor's graph is not kept, and the window resumes from the store's state") {
  LogStore store;
  const Tensor leaf = at::randn({1}).requires_grad_();
  const auto uses = leaf.use_count();
  store.log("loss", LogScope::train_step, RunningStage::train, leaf * 2, 1, {});
  CHECK(leaf.use_count() == uses);
  LogStore other;
  other.load_state(store.state());
  store.log("loss", LogScope::train_step, RunningStage::train, 4.0, 2, {});
  other.log("loss", LogScope::train_step, RunningStage::train, 4.0, 2, {});
  CHECK(step_values(store) == step_values(other));
}

TEST_CASE("log() of a run: defaults by hook, rows every n steps, the rest of a window at the end") {
  struct Logging : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t i) override {
      log("index", static_cast<double>(i));
      log("hidden", 1.0, {.logger = false});
      log("both", static_cast<double>(i), {.on_epoch = true});
      return SelfPlanned::training_step(batch, i);
    }
    void on_train_epoch_end() override { log("epoch_value", 42.0); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.log_every_n_steps = 4;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  const FitReport report = Trainer(options, components).fit(std::make_shared<Logging>(), regression_data(40, 12, 4));
  using Values = std::vector<std::pair<int64_t, double>>;
  CHECK(logger->values("index") == Values{{4, 1.5}, {8, 5.5}, {10, 8.5}});
  CHECK(logger->values("hidden").empty());
  CHECK(logger->values("both_epoch") == Values{{10, 4.5}});
  CHECK(logger->values("epoch_value") == Values{{10, 42.0}});
  CHECK(logger->values("val_loss").size() == 1);
  for (const auto& row : logger->rows) CHECK(row.metrics.back() == std::pair<std::string, double>("epoch", 0.0));
}

TEST_CASE("memory is flat for a user who logs the loss itself") {
  struct Logging : SelfPlanned {
    int64_t most = 0;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
      log("loss", loss, {.on_epoch = true});
      // Only this step's graph may hold the first weight's accumulator.
      most = std::max<int64_t>(most, static_cast<int64_t>(first->weight.use_count()));
      if (i == 0) first_use = most;
      return loss;
    }
    int64_t first_use = 0;
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 25;
  auto module = std::make_shared<Logging>();
  Trainer(options).fit(module, regression_data(40, 0));
  CHECK(module->most == module->first_use);
}

TEST_CASE("after a resume the current options count, and only once") {
  LogStore before;
  before.log("loss", LogScope::train_step, RunningStage::train, 2.0, 1, {});
  before.log("best", LogScope::train_step, RunningStage::train, 2.0, 1, {.reduce_fx = Reduce::max});
  LogStore store;
  store.load_state(before.state());
  store.log("loss", LogScope::train_step, RunningStage::train, 4.0, 1, {.prog_bar = true});
  // What another reduction has gathered means nothing to this one.
  store.log("best", LogScope::train_step, RunningStage::train, 1.0, 1, {.reduce_fx = Reduce::min});
  CHECK(step_values(store) == Metrics{{"loss", 3.0}, {"best", 1.0}});
  CHECK_THROWS_WITH(store.log("loss", LogScope::train_step, RunningStage::train, 4.0, 1, {}),
                    Catch::Matchers::ContainsSubstring("with other options"));
}

}  // namespace log_store_test
