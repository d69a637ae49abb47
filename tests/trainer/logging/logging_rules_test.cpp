// What log() means in each hook: the table of Lightning, hook by hook.
#include "trainer/boring.h"

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <limits>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "trainer/loops/recorder.h"

namespace logging_rules_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// Logs one value from one hook, chosen by name, with the options given.
struct LogsFrom : RecordingModule {
  std::string hook;
  LogOptions options;
  LogsFrom(Calls& list, std::string from, LogOptions with)
      : RecordingModule(list), hook(std::move(from)), options(std::move(with)) {
    schedule = ScheduleInterval::epoch;
  }
  void called(std::string_view name) override {
    if (name == hook) log("x", 1.0, options);
  }
};

// Names of the rows that result from logging in `hook`; the message if it is refused.
std::string outcome(const std::string& hook, const LogOptions& options = {}) {
  TemporaryFolder folder;
  Calls calls;
  auto module = std::make_shared<LogsFrom>(calls, hook, options);
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.max_epochs = 2;
  Trainer trainer(trainer_options, components);
  try {
    if (hook.find("test") != std::string::npos)
      trainer.test(module, regression_data(8, 8, 4));
    else if (hook.find("predict") != std::string::npos)
      trainer.predict(module, regression_data(8, 8, 4));
    else
      trainer.fit(module, regression_data(8, 8, 4));
  } catch (const Error& error) {
    return std::string(error.what()).find("cannot be logged from this hook") != std::string::npos ? "refused"
                                                                                                  : error.what();
  }
  std::set<std::string> names;
  size_t step_rows = 0;
  for (const auto& row : logger->rows) {
    for (const auto& [name, value] : row.metrics) {
      if (!name.starts_with("x")) continue;
      names.insert(name);
      ++step_rows;
    }
  }
  return cat(join({names.begin(), names.end()}), " ", step_rows);
}

}  // namespace

TEST_CASE("log: in training it is per step, in evaluation per epoch") {
  for (const char* hook : {"training_step", "on_train_batch_start", "on_train_batch_end", "on_before_backward",
                           "backward", "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping",
                           "optimizer_step", "on_before_zero_grad", "optimizer_zero_grad"}) {
    CAPTURE(hook);
    CHECK(outcome(hook) == "x 4");                                        // 2 epochs of 2 steps
    CHECK(outcome(hook, {.on_step = false, .on_epoch = true}) == "x 2");  // one per epoch
    CHECK(outcome(hook, {.on_epoch = true}) == "x_epoch, x_step 6");      // forked
  }
  for (const char* hook : {"validation_step", "on_validation_batch_start", "on_validation_batch_end"}) {
    CAPTURE(hook);
    CHECK(outcome(hook) == "x 2");
    CHECK(outcome(hook, {.on_step = true}) == "x_epoch, x_step 6");
    CHECK(outcome(hook, {.on_step = true, .on_epoch = false}) == "x 4");
  }
  for (const char* hook : {"test_step", "on_test_batch_start", "on_test_batch_end"}) {
    CAPTURE(hook);
    CHECK(outcome(hook) == "x 1");
  }
}

TEST_CASE("log: in hooks of an epoch it is per epoch, and only so") {
  for (const char* hook : {"on_train_epoch_start", "on_train_epoch_end", "on_validation_start",
                           "on_validation_epoch_start", "on_validation_epoch_end"}) {
    CAPTURE(hook);
    CHECK(outcome(hook) == "x 2");
    CHECK_THAT(outcome(hook, {.on_step = true}), ContainsSubstring("on_step is impossible"));
  }
  CHECK(outcome("on_train_start") == "x 1");
  for (const char* hook : {"on_test_start", "on_test_epoch_start", "on_test_epoch_end"}) {
    CAPTURE(hook);
    CHECK(outcome(hook) == "x 1");
  }
}

TEST_CASE("log: elsewhere it is an error") {
  for (const char* hook : {"setup",
                           "configure_model",
                           "configure_optimizers",
                           "configure_callbacks",
                           "prepare_data",
                           "on_fit_start",
                           "on_fit_end",
                           "on_train_end",
                           "on_validation_end",
                           "on_test_end",
                           "on_before_batch_transfer",
                           "on_after_batch_transfer",
                           "lr_scheduler_step",
                           "on_save_checkpoint",
                           "on_validation_model_eval",
                           "on_validation_model_train",
                           "on_validation_model_zero_grad",
                           "on_predict_start",
                           "on_predict_end",
                           "on_predict_epoch_start",
                           "on_predict_epoch_end",
                           "on_predict_batch_start",
                           "on_predict_batch_end",
                           "predict_step"}) {
    CAPTURE(hook);
    CHECK(outcome(hook) == "refused");
  }
}

TEST_CASE("log from callbacks follows the same table; the same name with other arguments is an error") {
  struct Logs : Callback {
    bool twice = false, forbidden = false;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      run.log_dict(Metrics{{"from_callback", 2.0}});
      if (twice) run.log("from_callback", 2.0, {.prog_bar = true});
    }
    void on_sanity_check_start(RunContext& run) override {
      if (forbidden) run.log("early", 1.0);
    }
  };
  TemporaryFolder folder;
  auto logger = std::make_shared<MemoryLogger>();
  auto callback = std::make_shared<Logs>();
  TrainerComponents components;
  components.loggers = {logger};
  components.add(callback);
  TrainerOptions options = quiet(folder);
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 4));
  CHECK(logger->values("from_callback") == std::vector<std::pair<int64_t, double>>{{1, 2.0}, {2, 2.0}});
  callback->twice = true;
  CHECK_THROWS_WITH(Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 4)),
                    ContainsSubstring("other options"));
  callback->twice = false;
  callback->forbidden = true;
  options.num_sanity_val_steps = 1;
  CHECK_THROWS_WITH(Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 4)),
                    ContainsSubstring("cannot be logged from this hook"));
}

TEST_CASE("log: what is not a scalar is refused, also with its shape") {
  struct Wrong : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t) override {
      const Tensor y = forward(b[0]);
      log("y", y);
      return y.mean();
    }
  };
  TemporaryFolder folder;
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<Wrong>(), regression_data(8, 0)),
                    ContainsSubstring("must be a scalar"));
}

TEST_CASE("log: a metric named step is the row's step") {
  struct OwnAxis : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      log("step", static_cast<double>(100 * (i + 1)));
      return SelfPlanned::training_step(b, i);
    }
  };
  TemporaryFolder folder;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  Trainer(quiet(folder), components).fit(std::make_shared<OwnAxis>(), regression_data(8, 0));
  REQUIRE(logger->rows.size() >= 2);
  CHECK(logger->rows[0].step == 100);
  CHECK(logger->rows[1].step == 200);
}

TEST_CASE("log: a metric named step that is not a step leaves the row at the global step, with one warning") {
  struct OddAxis : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      const double odd[] = {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), 1e300,
                            9007199254740992.0};
      log("step", odd[i]);
      return SelfPlanned::training_step(b, i);
    }
  };
  TemporaryFolder folder;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  std::string said;
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &said);
  Trainer(quiet(folder), components).fit(std::make_shared<OddAxis>(), regression_data(16, 0));
  log::set_sink({}, nullptr);
  REQUIRE(logger->rows.size() >= 4);
  for (size_t i = 0; i < 3; ++i) CHECK(logger->rows[i].step == static_cast<int64_t>(i) + 1);
  CHECK(logger->rows[3].step == 9007199254740992);
  CHECK_THAT(said, ContainsSubstring("the row gets the global step"));
  CHECK(said.find("logger.bad_step") == said.rfind("logger.bad_step"));
}

TEST_CASE("memory is flat over 1,000 steps of a user who logs the loss itself") {
#ifdef __SANITIZE_ADDRESS__
  SKIP("AddressSanitizer keeps memory that was freed");
#endif
  struct Keeps : SelfPlanned {
    int64_t at_100 = 0, at_end = 0;
    static int64_t resident_pages() {
      int64_t size = 0, resident = 0;
      std::ifstream("/proc/self/statm") >> size >> resident;
      return resident;
    }
    StepOutput training_step(const Batch& b, int64_t i) override {
      const Tensor loss = at::mse_loss(forward(b[0].repeat({64, 64})), b[1].repeat({64, 1}));
      log("loss", loss, {.prog_bar = true, .on_epoch = true});
      if (i == 100) at_100 = resident_pages();
      at_end = resident_pages();
      // The graph holds large tensors: keeping it shows.
      return {loss, {{"prediction", forward(b[0]) * loss}}};
    }
    torch::nn::Linear wide{nullptr};
    Keeps() { wide = register_module("wide", torch::nn::Linear(256, 2)); }
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 1e-4}); }
    Tensor forward(const Tensor& x) { return x.size(1) == 256 ? wide->forward(x) : SelfPlanned::forward(x); }
  };
  struct Watching : Callback {
    bool detached = true;
    void on_train_batch_end(RunContext&, const StepOutput& output, const Batch&, int64_t) override {
      detached &= !output.loss.requires_grad() && !output.extra["prediction"].requires_grad();
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Keeps>();
  auto watching = std::make_shared<Watching>();
  TrainerComponents components;
  components.add(watching);
  Trainer(quiet(folder), components).fit(module, regression_data(4000, 0));
  CHECK(watching->detached);
  // 1,000 graphs would hold 1,000 × 256 KB.
  CHECK((module->at_end - module->at_100) * getpagesize() < 8 * 1024 * 1024);
}

TEST_CASE("a metric of steps and epochs is the epoch's once that has ended, whatever log_every_n_steps is") {
  // At the end of an epoch, what callbacks and schedules follow.
  struct Watcher : Callback {
    std::vector<double> ended, running;
    Phase phase() const override { return Phase::decide; }
    void on_train_epoch_end(RunContext& run) override {
      ended.push_back(*run.metric("train_loss"));
      CHECK(ended.back() == *run.metric("train_loss_epoch"));
    }
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      running.push_back(*run.metric("train_loss"));
      CHECK(running.back() == *run.metric("train_loss_step"));
    }
  };
  struct Both : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t) override {
      const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
      log("train_loss", loss, {.on_step = true, .on_epoch = true});
      return loss;
    }
  };
  std::vector<double> of_each_step;
  for (const int64_t every : {1, 3, 7}) {
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 3;
    options.log_every_n_steps = every;
    const auto watcher = std::make_shared<Watcher>();
    TrainerComponents components;
    components.callbacks = {watcher};
    components.seed = 7;
    at::manual_seed(7);
    Trainer(options, components).fit(std::make_shared<Both>(), regression_data());
    if (every == 1) of_each_step = watcher->ended;
    CHECK(watcher->ended == of_each_step);
  }
}

TEST_CASE("the first logger alone names the run; another name of a later one is refused") {
  const auto run = [](std::vector<std::shared_ptr<Logger>> loggers) {
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 1;
    TrainerComponents components;
    components.loggers = std::move(loggers);
    const FitReport report =
        Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 0, 4));
    return report.run_dir.lexically_relative(folder.path()).string();
  };
  const auto csv = [](const std::string& name) {
    CsvLogger::Options options;
    options.name = name;
    return std::make_shared<CsvLogger>(options);
  };
  CHECK(run({csv("mine"), std::make_shared<JsonlLogger>()}) == "mine/version_0");
  CHECK(run({csv("mine"), csv("mine")}) == "mine/version_0");
  CHECK_THROWS_WITH(run({csv("mine"), csv("other")}), ContainsSubstring("only the name and version of the first"));
}

}  // namespace logging_rules_test
