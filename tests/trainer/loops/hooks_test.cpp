// The order of hooks is a contract: the whole list of calls is compared.
#include "trainer/loops/recorder.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>

#include "fulgur/callbacks/lambda_callback.h"

namespace hooks_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

Calls record(TrainerOptions options, std::shared_ptr<DataModule> data, const CheckpointChoice& from = {},
             bool schedule = false, std::shared_ptr<Callback> other = nullptr, FitReport* report = nullptr) {
  Calls calls;
  TrainerComponents components;
  components.callbacks = {std::make_shared<Recorder>(calls)};
  if (other) components.callbacks.push_back(other);
  auto module = std::make_shared<RecordingModule>(calls);
  if (schedule) module->schedule = ScheduleInterval::step;
  const FitReport result = Trainer(options, components).fit(module, data, from);
  if (report) *report = result;
  return calls;
}

// Which of two sequences first differs, and where: the whole lists are long.
void check_same(const Calls& calls, const Calls& expected) {
  for (size_t i = 0; i < std::min(calls.size(), expected.size()); ++i) {
    INFO("call " << i << ", after " << (i > 0 ? calls[i - 1] : "the beginning"));
    REQUIRE(calls[i] == expected[i]);
  }
  CHECK(calls.size() == expected.size());
}

}  // namespace

TEST_CASE("hooks of a fit, in order: sanity check, accumulation with a short window, validation in mid-epoch") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.num_sanity_val_steps = 1;
  options.accumulate_grad_batches = 3;
  options.val_check_interval = 2;
  const Calls calls =
      record(options, regression_data(16, 8, 4, false), {}, true);  // 4 training batches, 2 for validation

  Calls expected = beginning("fit");
  append(expected, both({"on_fit_start"}));
  expected.push_back("c.on_sanity_check_start");
  append(expected, evaluation("validation", 1));
  expected.push_back("c.on_sanity_check_end");
  append(expected, both({"on_train_start", "on_train_epoch_start"}));
  append(expected, train_batch(0, false));
  append(expected, train_batch(1, false));
  append(expected, evaluation("validation", 2));  // gradients of the open window are kept
  append(expected, saved());
  append(expected, train_batch(2, true, true));
  append(expected, train_batch(3, true, true));  // the last, shorter window is stepped
  append(expected, validation(2));
  append(expected, both({"on_train_epoch_end"}));
  append(expected, saved());
  append(expected, both({"on_train_end", "on_fit_end"}));
  append(expected, ending());
  check_same(calls, expected);
}

TEST_CASE("hooks of a fit without accumulation, over two epochs, and of a resume in mid-epoch") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  FitReport report;
  const auto data = [] { return regression_data(8, 4, 4, false); };  // 2 training batches, 1 for validation
  const auto epoch = [](Calls& expected, int64_t from) {
    if (from == 0) append(expected, both({"on_train_epoch_start"}));
    for (int64_t i = from; i < 2; ++i) append(expected, train_batch(i, true));
    append(expected, validation(1));
    append(expected, both({"on_train_epoch_end"}));
    append(expected, saved());
  };
  Calls expected = beginning("fit");
  append(expected, both({"on_fit_start", "on_train_start"}));
  epoch(expected, 0);
  epoch(expected, 0);
  append(expected, both({"on_train_end", "on_fit_end"}));
  append(expected, ending());
  check_same(record(options, data()), expected);

  options.max_steps = 3;
  record(options, data(), {}, false, nullptr, &report);
  options.max_steps = -1;
  expected = beginning("fit");
  expected.insert(expected.end() - 1, {"on_load_checkpoint", "c.on_load_checkpoint"});  // before configure_optimizers
  append(expected, both({"on_fit_start", "on_train_start"}));
  epoch(expected, 1);  // no on_train_epoch_start: the epoch has begun in the first part
  append(expected, both({"on_train_end", "on_fit_end"}));
  append(expected, ending());
  check_same(record(options, data(), report.last_checkpoint->string()), expected);
}

TEST_CASE("hooks of an early stop in mid-epoch: a validation, no end of the epoch, but of training and fit") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  auto stop = std::make_shared<LambdaCallback>(
      LambdaCallback::Hooks{.on_train_batch_end = [](RunContext& run, const StepOutput&, const Batch&, int64_t i) {
        if (i == 1) run.request_stop("enough");
      }});
  FitReport report;
  const Calls calls = record(options, regression_data(16, 4, 4, false), {}, false, stop, &report);
  CHECK(report.stop_reason == "enough");
  Calls expected = beginning("fit");
  append(expected, both({"on_fit_start", "on_train_start", "on_train_epoch_start"}));
  append(expected, train_batch(0, true));
  append(expected, train_batch(1, true));
  append(expected, validation(1));
  append(expected, both({"on_train_end"}));
  append(expected, saved());
  append(expected, both({"on_fit_end"}));
  append(expected, ending());
  check_same(calls, expected);
}

TEST_CASE("hooks of validate, test and predict, in order") {
  TemporaryFolder folder;
  for (const std::string verb : {"validate", "test", "predict"}) {
    CAPTURE(verb);
    Calls calls;
    TrainerComponents components;
    components.callbacks = {std::make_shared<Recorder>(calls)};
    Trainer trainer(quiet(folder), components);
    auto module = std::make_shared<RecordingModule>(calls);
    if (verb == "validate") trainer.validate(module, regression_data(8, 8, 4));
    if (verb == "test") trainer.test(module, regression_data(8, 8, 4));
    if (verb == "predict") trainer.predict(module, regression_data(8, 8, 4));
    Calls expected = beginning(verb);
    append(expected, evaluation(verb == "validate" ? "validation" : verb, 2));
    append(expected, ending());
    check_same(calls, expected);
  }
}

TEST_CASE("callbacks come before the module, checkpoint callbacks after the others") {
  TemporaryFolder folder;
  Calls calls;
  TrainerComponents components;
  // Given in the wrong order on purpose.
  components.callbacks = {std::make_shared<Recorder>(calls, "k", Phase::checkpoint),
                          std::make_shared<Recorder>(calls, "d", Phase::decide),
                          std::make_shared<Recorder>(calls, "c", Phase::observe)};
  TrainerOptions options = quiet(folder);
  Trainer(options, components).fit(std::make_shared<RecordingModule>(calls), regression_data(8, 4, 4, false));
  // At the end of an epoch the module comes between those that watch and those that decide.
  const std::vector<std::string> at_epoch_end{"c.on_train_epoch_end", "on_train_epoch_end", "d.on_train_epoch_end",
                                              "k.on_train_epoch_end"};
  const auto found = std::search(calls.begin(), calls.end(), at_epoch_end.begin(), at_epoch_end.end());
  CHECK(found != calls.end());
  int64_t checked = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].starts_with("c.")) continue;
    const std::string hook = calls[i].substr(2);
    if (hook == "on_train_epoch_end") continue;
    CAPTURE(hook);
    REQUIRE(calls.at(i + 1) == "d." + hook);
    REQUIRE(calls.at(i + 2) == "k." + hook);
    ++checked;
  }
  CHECK(checked > 20);
}

TEST_CASE("hooks after an exception: callbacks are notified, everything is torn down, the error propagates") {
  struct Failing : RecordingModule {
    using RecordingModule::RecordingModule;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i == 1) throw std::runtime_error("broken on purpose");
      return RecordingModule::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  Calls calls;
  TrainerComponents components;
  auto logger = std::make_shared<MemoryLogger>();
  components.callbacks = {std::make_shared<Recorder>(calls)};
  components.loggers = {logger};
  auto module = std::make_shared<Failing>(calls);
  CHECK_THROWS_WITH(Trainer(quiet(folder), components).fit(module, regression_data(16, 0)),
                    ContainsSubstring("broken on purpose"));
  Calls expected = beginning("fit");
  append(expected, both({"on_fit_start", "on_train_start", "on_train_epoch_start"}));
  append(expected, train_batch(0, true));
  append(expected, transfer());
  append(expected, both({"on_train_batch_start 1"}));
  append(expected, {"c.on_exception", "c.teardown", "teardown"});
  check_same(calls, expected);
  CHECK(logger->status == RunStatus::failed);
  CHECK_FALSE(module->in_run());
}

TEST_CASE("a signal is handled like an exception, after the last checkpoint") {
  struct Signalled : RecordingModule {
    using RecordingModule::RecordingModule;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i == 1) std::raise(SIGTERM);
      return RecordingModule::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  Calls calls;
  std::string told;
  TrainerComponents components;
  auto logger = std::make_shared<MemoryLogger>();
  components.callbacks = {std::make_shared<Recorder>(calls),
                          std::make_shared<LambdaCallback>(
                              LambdaCallback::Hooks{.on_exception = [&](RunContext&, const std::exception& error) {
                                const auto* signal = dynamic_cast<const Interrupted*>(&error);
                                told = signal ? cat("signal ", signal->signal()) : "another error";
                              }})};
  components.loggers = {logger};
  const FitReport report =
      Trainer(quiet(folder), components).fit(std::make_shared<Signalled>(calls), regression_data(16, 0, 4, false));
  CHECK(report.exit_code == ExitCode::preempted);
  CHECK(report.stop_reason == cat("signal ", SIGTERM));
  CHECK(told == cat("signal ", SIGTERM));
  CHECK(logger->status == RunStatus::interrupted);
  Calls expected = beginning("fit");
  append(expected, both({"on_fit_start", "on_train_start", "on_train_epoch_start"}));
  append(expected, train_batch(0, true));
  append(expected, train_batch(1, true));
  append(expected, saved());
  append(expected, {"c.on_exception", "c.teardown", "teardown"});
  check_same(calls, expected);
}

TEST_CASE("returning -1 from on_train_batch_start skips the rest of the epoch, an open window is stepped") {
  struct Skipping : SelfPlanned {
    int64_t steps = 0;
    int on_train_batch_start(const Batch&, int64_t i) override { return i == 4 ? -1 : 0; }
    StepOutput training_step(const Batch& batch, int64_t i) override {
      ++steps;
      return SelfPlanned::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.accumulate_grad_batches = 3;
  auto module = std::make_shared<Skipping>();
  const FitReport report = Trainer(options).fit(module, regression_data(40, 0));
  CHECK(module->steps == 8);
  CHECK(report.global_step == 4);  // windows of 3 and 1, twice
  CHECK(report.epochs == 2);
}

TEST_CASE("an undefined loss skips the step") {
  struct Empty : SelfPlanned {
    int64_t without = 0;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i == without) return {};
      return SelfPlanned::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Empty>();
  const FitReport report = Trainer(quiet(folder)).fit(module, regression_data(8, 0));
  CHECK(report.global_step == 1);
  // In a window, the others make the mean: two batches of three are as a window of two.
  const auto train = [&](int64_t samples, int64_t accumulate, int64_t without) {
    at::manual_seed(3);
    auto fresh = std::make_shared<Empty>();
    fresh->without = without;
    TensorDataModule::Sets sets;
    sets.train = regression(12).narrow(0, samples);
    TrainerOptions options = quiet(folder);
    options.accumulate_grad_batches = accumulate;
    const std::shared_ptr<DataModule> data = std::make_shared<TensorDataModule>(
        std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = false});
    CHECK(Trainer(options).fit(fresh, data).global_step == 1);
    return weights(*fresh);
  };
  const auto whole = train(8, 2, -1), gap = train(12, 3, 2);
  for (const auto& [name, value] : whole) CHECK((value - gap.at(name)).abs().max().item<double>() < 1e-6);
}

TEST_CASE("a Trainer refuses to run inside its own run") {
  struct Reentering : SelfPlanned {
    Trainer* trainer = nullptr;
    std::string message;
    void on_train_start() override {
      try {
        trainer->test(std::make_shared<SelfPlanned>(), regression_data());
      } catch (const Error& error) {
        message = error.what();
      }
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Reentering>();
  Trainer trainer(quiet(folder));
  module->trainer = &trainer;
  trainer.fit(module, regression_data(8, 0));
  CHECK_THAT(module->message, ContainsSubstring("a run is in progress"));
}

}  // namespace hooks_test
