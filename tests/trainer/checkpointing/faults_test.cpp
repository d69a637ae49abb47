// F49, F50: exceptions from every hook, and runs inside, alongside and after other runs.
#include "failures/failure_hints.h"
#include "trainer/loops/recorder.h"

#include <c10/util/Exception.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <thread>

#include "fulgur/core/text/log.h"

namespace faults_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

enum class Thrown { standard, other };

// Throws from the hook of that name when it is noted.
struct Thrower {
  std::string hook;
  Thrown kind = Thrown::standard;
  bool again = false;  // in on_exception too
  void at(const std::string& call) const {
    if (again && call.ends_with(".on_exception")) throw std::runtime_error("and again");
    if (call != hook) return;
    if (kind == Thrown::standard) throw std::runtime_error("broken on purpose");
    throw 7;
  }
};

// The list of calls is where recorders write: it throws there.
struct Throwing : Recorder {
  const Thrower& thrower;
  Throwing(Calls& list, const Thrower& t, std::string mark_text) : Recorder(list, std::move(mark_text)), thrower(t) {}
};

#define FULGUR_THROWING_HOOKS(HOOK)                                                                                \
  HOOK(setup, (RunContext & run, TrainerFn fn), (run, fn), cat("setup(", name_of(fn), ")"))                        \
  HOOK(teardown, (RunContext & run, TrainerFn fn), (run, fn), "teardown")                                          \
  HOOK(on_exception, (RunContext & run, const std::exception& e), (run, e), "on_exception")                        \
  HOOK(on_fit_start, (RunContext & run), (run), "on_fit_start")                                                    \
  HOOK(on_fit_end, (RunContext & run), (run), "on_fit_end")                                                        \
  HOOK(on_sanity_check_start, (RunContext & run), (run), "on_sanity_check_start")                                  \
  HOOK(on_sanity_check_end, (RunContext & run), (run), "on_sanity_check_end")                                      \
  HOOK(on_train_start, (RunContext & run), (run), "on_train_start")                                                \
  HOOK(on_train_end, (RunContext & run), (run), "on_train_end")                                                    \
  HOOK(on_train_epoch_start, (RunContext & run), (run), "on_train_epoch_start")                                    \
  HOOK(on_train_epoch_end, (RunContext & run), (run), "on_train_epoch_end")                                        \
  HOOK(on_train_batch_start, (RunContext & run, const Batch& b, int64_t i), (run, b, i), "on_train_batch_start 0") \
  HOOK(on_train_batch_end, (RunContext & run, const StepOutput& o, const Batch& b, int64_t i), (run, o, b, i),     \
       "on_train_batch_end 0")                                                                                     \
  HOOK(on_before_zero_grad, (RunContext & run, Optimizer & o), (run, o), "on_before_zero_grad")                    \
  HOOK(on_before_backward, (RunContext & run, const Tensor& l), (run, l), "on_before_backward")                    \
  HOOK(on_after_backward, (RunContext & run), (run), "on_after_backward")                                          \
  HOOK(on_before_optimizer_step, (RunContext & run, Optimizer & o), (run, o), "on_before_optimizer_step")          \
  HOOK(on_validation_start, (RunContext & run), (run), "on_validation_start")                                      \
  HOOK(on_validation_epoch_start, (RunContext & run), (run), "on_validation_epoch_start")                          \
  HOOK(on_validation_batch_start, (RunContext & run, const Batch& b, int64_t i, int64_t l), (run, b, i, l),        \
       "on_validation_batch_start 0")                                                                              \
  HOOK(on_validation_batch_end, (RunContext & run, const Outputs& o, const Batch& b, int64_t i, int64_t l),        \
       (run, o, b, i, l), "on_validation_batch_end 0")                                                             \
  HOOK(on_validation_epoch_end, (RunContext & run), (run), "on_validation_epoch_end")                              \
  HOOK(on_validation_end, (RunContext & run), (run), "on_validation_end")                                          \
  HOOK(on_save_checkpoint, (RunContext & run, StateTree & s), (run, s), "on_save_checkpoint")

struct ThrowingCallback final : Throwing {
  using Throwing::Throwing;
#define FULGUR_THROW(hook, parameters, arguments, text) \
  void hook parameters override {                       \
    Recorder::hook arguments;                           \
    thrower.at(cat(mark, ".", text));                   \
  }
  FULGUR_THROWING_HOOKS(FULGUR_THROW)
#undef FULGUR_THROW
};

std::vector<std::string> callback_hooks() {
  std::vector<std::string> names;
#define FULGUR_NAME(hook, parameters, arguments, text) names.push_back(cat("c.", cat(text)));
  using fulgur::TrainerFn;
  const TrainerFn fn = TrainerFn::fit;
  FULGUR_THROWING_HOOKS(FULGUR_NAME)
#undef FULGUR_NAME
  return names;
}

// Throws from hooks of the module: if it would write them down.
struct ThrowingModule final : RecordingModule {
  const Thrower& thrower;
  ThrowingModule(Calls& list, const Thrower& t) : RecordingModule(list), thrower(t) {}
#define FULGUR_THROW(hook)   \
  void hook() override {     \
    RecordingModule::hook(); \
    thrower.at(#hook);       \
  }
  FULGUR_THROW(prepare_data)
  FULGUR_THROW(configure_model)
  FULGUR_THROW(on_fit_start)
  FULGUR_THROW(on_fit_end)
  FULGUR_THROW(on_train_start)
  FULGUR_THROW(on_train_end)
  FULGUR_THROW(on_train_epoch_start)
  FULGUR_THROW(on_train_epoch_end)
  FULGUR_THROW(on_after_backward)
  FULGUR_THROW(on_validation_start)
  FULGUR_THROW(on_validation_end)
  FULGUR_THROW(on_validation_epoch_end)
  FULGUR_THROW(on_validation_model_eval)
  FULGUR_THROW(on_validation_model_train)
#undef FULGUR_THROW
  OptimizerPlan configure_optimizers() override {
    thrower.at("configure_optimizers");
    return RecordingModule::configure_optimizers();
  }
  StepOutput training_step(const Batch& b, int64_t i) override {
    thrower.at("training_step");
    return RecordingModule::training_step(b, i);
  }
  void backward(const Tensor& loss, const BackwardOptions& o) override {
    RecordingModule::backward(loss, o);
    thrower.at("backward");
  }
  void optimizer_step(int64_t e, int64_t b, OptimizerHandle& o, const Closure& c) override {
    RecordingModule::optimizer_step(e, b, o, c);
    thrower.at("optimizer_step");
  }
  Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
    thrower.at("validation_step");
    return RecordingModule::validation_step(b, i, l);
  }
  void setup(TrainerFn v) override {
    RecordingModule::setup(v);
    thrower.at("setup");
  }
  void teardown(TrainerFn v) override {
    RecordingModule::teardown(v);
    thrower.at("teardown");
  }
};

struct Outcome {
  std::string error;  // empty: the run ended well
  Calls calls;
  std::optional<RunStatus> status;
  bool in_run = true, training_mode = false;
};

Outcome run_with(const Thrower& thrower) {
  Outcome outcome;
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.num_sanity_val_steps = 1;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  // A second callback, to see that it is notified and torn down too.
  components.callbacks = {std::make_shared<ThrowingCallback>(outcome.calls, thrower, "c"),
                          std::make_shared<Recorder>(outcome.calls, "w")};
  auto module = std::make_shared<ThrowingModule>(outcome.calls, thrower);
  Trainer trainer(options, components);
  try {
    trainer.fit(module, regression_data(8, 4, 4));
  } catch (const std::exception& error) {
    outcome.error = error.what();
  } catch (int number) {
    outcome.error = cat("number ", number);
  }
  outcome.status = logger->status;
  outcome.in_run = module->in_run();
  outcome.training_mode = module->is_training();
  // After any failure the same Trainer and module serve again.
  const Thrower nothing;
  Calls ignored;
  CHECK(trainer.options().max_epochs == 1);
  CHECK(Trainer(quiet(folder))
            .fit(std::make_shared<ThrowingModule>(ignored, nothing), regression_data(8, 0, 4))
            .global_step == 2);
  return outcome;
}

size_t count(const Calls& calls, const std::string& call) {
  return static_cast<size_t>(std::count(calls.begin(), calls.end(), call));
}

}  // namespace

TEST_CASE("F49 a throw in any hook: the first error propagates, all are notified and torn down") {
  std::vector<std::string> hooks = callback_hooks();
  for (const char* hook : {"prepare_data",
                           "setup",
                           "configure_model",
                           "configure_optimizers",
                           "on_fit_start",
                           "on_fit_end",
                           "on_train_start",
                           "on_train_end",
                           "on_train_epoch_start",
                           "on_train_epoch_end",
                           "on_after_backward",
                           "on_validation_start",
                           "on_validation_end",
                           "on_validation_epoch_end",
                           "on_validation_model_eval",
                           "on_validation_model_train",
                           "training_step",
                           "backward",
                           "optimizer_step",
                           "validation_step"})
    hooks.emplace_back(hook);
  for (const std::string& hook : hooks) {
    // These come after the failure, or in its handling: they have separate cases below.
    if (hook == "c.on_exception" || hook == "c.teardown") continue;
    for (const Thrown kind : {Thrown::standard, Thrown::other}) {
      for (const bool again : {false, true}) {
        CAPTURE(hook, kind == Thrown::standard, again);
        const Outcome outcome = run_with({.hook = hook, .kind = kind, .again = again});
        CHECK(outcome.error == (kind == Thrown::standard ? "broken on purpose" : "number 7"));
        CHECK_FALSE(outcome.in_run);
        CHECK(count(outcome.calls, "c.on_exception") == 1);
        CHECK(count(outcome.calls, "w.on_exception") == 1);
        CHECK(count(outcome.calls, "c.teardown") == 1);
        CHECK(count(outcome.calls, "w.teardown") == 1);
        CHECK(count(outcome.calls, "teardown") == 1);
        CHECK(outcome.calls.back() == "teardown");
        // If loggers had been started, they are notified.
        if (outcome.status) CHECK(*outcome.status == RunStatus::failed);
        CHECK(outcome.training_mode);
      }
    }
  }
}

TEST_CASE("F49 a throw in teardown of a run that went well is reported, and the rest is torn down") {
  const Outcome outcome = run_with({.hook = "c.teardown"});
  CHECK(outcome.error.empty());
  CHECK(count(outcome.calls, "w.teardown") == 1);
  CHECK(outcome.calls.back() == "teardown");
  CHECK(outcome.status == RunStatus::success);
}

TEST_CASE("F49 a throwing logger: the error propagates, finalize is called") {
  struct Throws : MemoryLogger {
    void log_metrics(const Metrics&, int64_t) override { throw std::runtime_error("no disk"); }
  };
  TemporaryFolder folder;
  auto logger = std::make_shared<Throws>();
  TrainerComponents components;
  components.loggers = {logger};
  CHECK_THROWS_WITH(Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 0)),
                    ContainsSubstring("no disk"));
  CHECK(logger->status == RunStatus::failed);
}

TEST_CASE("a failure in mid-batch names the batch with its shapes") {
  struct Fails : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (i == 1) throw std::runtime_error("broken on purpose");
      return SelfPlanned::training_step(b, i);
    }
  };
  std::vector<std::string> lines;
  log::set_sink([](log::Level, const std::string& line,
                   void* user) { static_cast<std::vector<std::string>*>(user)->push_back(line); },
                &lines);
  TemporaryFolder folder;
  CHECK_THROWS(Trainer(quiet(folder)).fit(std::make_shared<Fails>(), regression_data(8, 0)));
  log::set_sink({}, nullptr);
  const auto found = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("the run failed in") != std::string::npos;
  });
  REQUIRE(found != lines.end());
  CHECK_THAT(*found, ContainsSubstring("train, epoch 0, batch 1, step 1, x [4, 4] Float"));
}

TEST_CASE("a failure names its stage, its place and the batch's shapes, wherever it comes from") {
  struct Fails : SelfPlanned {
    explicit Fails(std::string place) : where(std::move(place)) {}
    std::string where;
    void fail_in(std::string_view here) const {
      if (where == here) throw std::runtime_error("broken on purpose");
    }
    StepOutput training_step(const Batch& b, int64_t i) override {
      fail_in("training_step");
      return SelfPlanned::training_step(b, i);
    }
    void on_before_backward(const Tensor&) override { fail_in("backward"); }
    void on_before_optimizer_step(Optimizer&) override { fail_in("step"); }
    Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
      if (i == 1) fail_in(run().sanity_checking() ? "sanity" : "validation_step");
      return SelfPlanned::validation_step(b, i, l);
    }
    Outputs test_step(const Batch&, int64_t, int64_t) override {
      fail_in("test_step");
      return {};
    }
    Outputs predict_step(const Batch&, int64_t, int64_t) override {
      fail_in("predict_step");
      return {};
    }
    void on_validation_epoch_end() override {
      if (!run().sanity_checking()) fail_in("validation_epoch_end");
    }
  };
  struct FailingCallback : Callback {
    void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t) override {
      throw std::runtime_error("broken on purpose");
    }
    std::string state_key() const override { return "FailingCallback"; }
  };
  const auto line_of = [](const std::string& where) {
    TemporaryFolder folder;
    std::string told;
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &told);
    const auto module = std::make_shared<Fails>(where);
    TrainerOptions options = quiet(folder);
    options.num_sanity_val_steps = 2;
    TrainerComponents components;
    if (where == "callback") components.add(std::make_shared<FailingCallback>());
    Trainer trainer(options, components);
    if (where == "test_step")
      CHECK_THROWS(trainer.test(module, regression_data()));
    else if (where == "predict_step")
      CHECK_THROWS(trainer.predict(module, regression_data()));
    else
      CHECK_THROWS(trainer.fit(module, regression_data()));
    log::set_sink({}, nullptr);
    const size_t begin = told.find("the run failed in");
    return begin == told.npos ? std::string() : told.substr(begin, told.find('\n', begin) - begin);
  };
  const std::string shapes = "x [4, 4] Float, y [4, 2] Float";
  CHECK(line_of("training_step") ==
        "the run failed in train, epoch 0, batch 0, step 0, " + shapes + ", in training_step");
  CHECK(line_of("backward") == "the run failed in train, epoch 0, batch 0, step 0, " + shapes + ", in backward");
  CHECK(line_of("step") == "the run failed in train, epoch 0, batch 0, step 0, " + shapes + ", in optimizer_step");
  CHECK(line_of("callback") ==
        "the run failed in train, epoch 0, batch 0, step 1, " + shapes + ", in callback FailingCallback");
  CHECK(line_of("sanity") ==
        "the run failed in sanity check, epoch 0, batch 1, step 0, " + shapes + ", in validation_step");
  CHECK(line_of("validation_step") ==
        "the run failed in validate, epoch 0, batch 1, step 10, " + shapes + ", in validation_step");
  CHECK(line_of("validation_epoch_end") == "the run failed in validate, epoch 0, batch 2, step 10");
  CHECK(line_of("test_step") == "the run failed in test, epoch 0, batch 0, step 0, " + shapes + ", in test_step");
  CHECK(line_of("predict_step") ==
        "the run failed in predict, epoch 0, batch 0, step 0, " + shapes + ", in predict_step");
}

TEST_CASE("a shape that does not fit and a label that is out of range come with a hint") {
  struct Wrong : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      return SelfPlanned::training_step(Batch({Batch::Entry{"x", b[0].narrow(1, 0, 3)}, Batch::Entry{"y", b[1]}}), i);
    }
  };
  TemporaryFolder folder;
  std::string told;
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &told);
  CHECK_THROWS(Trainer(quiet(folder)).fit(std::make_shared<Wrong>(), regression_data(8, 0)));
  log::set_sink({}, nullptr);
  CHECK_THAT(told, ContainsSubstring("hint: a linear layer got a different number of features than its in_features"));
  CHECK(fulgur::detail::hint_for("Target 12 is out of bounds."));
  CHECK(fulgur::detail::hint_for("Expected all tensors to be on the same device, but got mat1 is on cuda:0"));
  CHECK_FALSE(fulgur::detail::hint_for("no space left on device"));
}

TEST_CASE("F50 fit twice, and after a failure: the Trainer serves again") {
  struct FailsOnce : SelfPlanned {
    bool fail = true;
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (fail && i == 1) throw std::runtime_error("once");
      return SelfPlanned::training_step(b, i);
    }
  };
  TemporaryFolder folder;
  Trainer trainer(quiet(folder));
  auto module = std::make_shared<FailsOnce>();
  CHECK_THROWS_WITH(trainer.fit(module, regression_data(16, 0)), ContainsSubstring("once"));
  module->fail = false;
  CHECK(trainer.fit(module, regression_data(16, 0)).global_step == 4);
  CHECK(trainer.fit(module, regression_data(16, 0)).global_step == 4);
}

TEST_CASE("F50 a second run on the same Trainer or module, from a hook, is refused and the first continues") {
  struct Reenters : SelfPlanned {
    std::function<void()> inside;
    std::string message;
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override {
      if (i != 0) return;
      try {
        inside();
      } catch (const Error& error) {
        message = error.what();
      }
    }
  };
  TemporaryFolder folder;
  Trainer trainer(quiet(folder)), other(quiet(folder));
  auto module = std::make_shared<Reenters>();
  module->inside = [&] { trainer.test(std::make_shared<SelfPlanned>(), regression_data()); };
  CHECK(trainer.fit(module, regression_data(16, 0)).global_step == 4);
  CHECK_THAT(module->message, ContainsSubstring("a run is in progress"));
  // Another Trainer may run inside, but not on the same module.
  module->inside = [&] { other.test(module, regression_data()); };
  CHECK(trainer.fit(module, regression_data(16, 0)).global_step == 4);
  CHECK_THAT(module->message, ContainsSubstring("the module is already in a run"));
  module->message.clear();
  module->inside = [&] { other.test(std::make_shared<SelfPlanned>(), regression_data()); };
  CHECK(trainer.fit(module, regression_data(16, 0)).global_step == 4);
  CHECK(module->message.empty());
}

TEST_CASE("F50 two threads on one Trainer: one runs, the other is refused") {
  struct Waits : SelfPlanned {
    std::atomic<bool>* begun = nullptr;
    std::atomic<bool>* go_on = nullptr;
    void on_train_start() override {
      *begun = true;
      while (!*go_on) std::this_thread::yield();
    }
  };
  TemporaryFolder folder;
  Trainer trainer(quiet(folder));
  std::atomic<bool> begun = false, go_on = false;
  auto module = std::make_shared<Waits>();
  module->begun = &begun;
  module->go_on = &go_on;
  int64_t steps = 0;
  const auto data = regression_data(16, 0);
  std::thread first([&] { steps = trainer.fit(module, data).global_step; });
  while (!begun) std::this_thread::yield();
  std::string message;
  try {
    trainer.test(std::make_shared<SelfPlanned>(), regression_data());
  } catch (const Error& error) {
    message = error.what();
  }
  go_on = true;
  first.join();
  CHECK_THAT(message, ContainsSubstring("a run is in progress"));
  CHECK(steps == 4);
}

TEST_CASE("F50 a Trainer that is destroyed inside its run: the run ends normally") {
  struct Destroys : SelfPlanned {
    std::optional<Trainer>* trainer = nullptr;
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override {
      if (i == 1) trainer->reset();
    }
  };
  TemporaryFolder folder;
  std::optional<Trainer> trainer(std::in_place, quiet(folder));
  auto module = std::make_shared<Destroys>();
  module->trainer = &trainer;
  const FitReport report = trainer->fit(std::static_pointer_cast<LightningModule>(module), regression_data(16, 0));
  CHECK(report.global_step == 4);
  CHECK_FALSE(trainer.has_value());
}

TEST_CASE("a report returns a metric by its name, or an error with the existing names") {
  TemporaryFolder folder;
  Trainer trainer(quiet(folder));
  CHECK_FALSE(trainer.last_fit());
  const FitReport fit = trainer.fit(std::make_shared<SelfPlanned>(), regression_data());
  REQUIRE(fit.metrics.size() == 2);
  for (const auto& [name, value] : fit.metrics) CHECK(fit.metric(name) == value);
  CHECK_THROWS_WITH(fit.metric("val_los"),
                    ContainsSubstring("[trainer.report] there is no metric 'val_los'; the metrics are: ") &&
                        ContainsSubstring("train_loss") && ContainsSubstring("did you mean 'val_loss'?"));
  CHECK_THROWS_WITH(FitReport().metric("loss"), "[trainer.report] there is no metric 'loss'; the metrics are: none.");
  const EvalReport test = trainer.test(std::make_shared<SelfPlanned>(), regression_data());
  CHECK(test.metric("test_loss") == test.loaders[0][0].second);
  CHECK_THROWS_AS(test.metric("val_loss"), Error);
  // The last fit stays that.
  REQUIRE(trainer.last_fit());
  CHECK(trainer.last_fit()->metric("val_loss") == fit.metric("val_loss"));
}

TEST_CASE("after a fit that throws, last_fit has the metrics and counts that it had reached") {
  struct FailsLater : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (global_step() == 13) throw DataError("broken on purpose");
      return SelfPlanned::training_step(b, i);
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 5;
  options.log_every_n_steps = 2;
  Trainer trainer(options);
  CHECK_THROWS_WITH(trainer.fit(std::make_shared<FailsLater>(), regression_data(40)),
                    ContainsSubstring("broken on purpose"));
  const auto failed = trainer.last_fit();
  REQUIRE(failed);
  CHECK(failed->exit_code == ExitCode::data);
  CHECK(failed->stop_reason == "exception");
  CHECK(failed->epochs == 1);
  CHECK(failed->global_step == 13);
  CHECK(failed->train_seconds > 0);
  CHECK(failed->metric("val_loss") > 0);
  CHECK(failed->metric("train_loss") > 0);
  REQUIRE(failed->last_checkpoint);
  CHECK(failed->run_dir == trainer.log_dir());
  // One that fails before the loops has reached nothing.
  CHECK_THROWS(trainer.fit(nullptr, regression_data()));
  CHECK(trainer.last_fit()->global_step == 0);
  CHECK(trainer.last_fit()->exit_code == ExitCode::usage);
}

TEST_CASE("out of memory gets the advice for its place: in an evaluation, in training, and none elsewhere") {
  struct Hungry : SelfPlanned {
    std::string in;
    void at(std::string_view place) const {
      if (place == in) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "CUDA out of memory.");
    }
    void setup(TrainerFn) override { at("setup"); }
    OptimizerPlan configure_optimizers() override {
      at("configure_optimizers");
      return SelfPlanned::configure_optimizers();
    }
    void on_fit_start() override { at("on_fit_start"); }
    void on_train_start() override { at("on_train_start"); }
    void on_validation_start() override { at("on_validation_start"); }
    StepOutput training_step(const Batch& b, int64_t i) override {
      at("training_step");
      return SelfPlanned::training_step(b, i);
    }
    Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
      at("validation_step");
      return SelfPlanned::validation_step(b, i, l);
    }
    Outputs test_step(const Batch& b, int64_t i, int64_t l) override {
      at("test_step");
      return SelfPlanned::test_step(b, i, l);
    }
  };
  std::string precision = "32-true";
  const auto told_of = [&](const std::string& place, TrainerFn fn) {
    TemporaryFolder folder;
    auto module = std::make_shared<Hungry>();
    module->in = place;
    std::string told;
    log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                  &told);
    TrainerOptions options = quiet(folder);
    options.precision = Spec<Precision>(precision);
    Trainer trainer(options);
    if (fn == TrainerFn::fit)
      CHECK_THROWS_AS(trainer.fit(module, regression_data()), c10::OutOfMemoryError);
    else
      CHECK_THROWS_AS(trainer.test(module, regression_data()), c10::OutOfMemoryError);
    log::set_sink({}, nullptr);
    INFO(place << ": " << told);
    CHECK_THAT(told, ContainsSubstring("the run failed in "));
    const bool evaluation = told.find("a smaller evaluation batch") != std::string::npos;
    const bool training = told.find("accumulate_grad_batches") != std::string::npos;
    CHECK_FALSE((evaluation && training));
    // What is set already is no advice.
    CHECK((told.find("bf16-mixed or 16-mixed") != std::string::npos) ==
          ((evaluation || training) && precision == "32-true"));
    return std::string(evaluation ? "evaluation" : training ? "training" : "nothing");
  };
  for (const char* place : {"validation_step", "on_validation_start"})
    CHECK(told_of(place, TrainerFn::fit) == "evaluation");
  CHECK(told_of("test_step", TrainerFn::test) == "evaluation");
  CHECK(told_of("training_step", TrainerFn::fit) == "training");
  for (const char* place : {"setup", "configure_optimizers", "on_fit_start", "on_train_start"}) {
    CAPTURE(place);
    CHECK(told_of(place, TrainerFn::fit) == "nothing");
  }
  CHECK(told_of("setup", TrainerFn::test) == "nothing");
  precision = "bf16-mixed";
  CHECK(told_of("validation_step", TrainerFn::fit) == "evaluation");
  CHECK(told_of("training_step", TrainerFn::fit) == "training");
}

TEST_CASE("out of memory while a loader copies a training batch to the device gets its place and its own advice") {
  struct HungryLoader : DataLoader {
    using DataLoader::DataLoader;
    bool next(Batch&) override { throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "CUDA out of memory."); }
  };
  const TemporaryFolder folder;
  const auto loader = std::make_shared<HungryLoader>(std::make_shared<TensorDataset>(regression(8)),
                                                     DataLoaderOptions{.batch_size = 4});
  std::string told;
  log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                &told);
  CHECK_THROWS_AS(Trainer(quiet(folder)).fit(std::make_shared<SelfPlanned>(), DataSource(loader)),
                  c10::OutOfMemoryError);
  log::set_sink({}, nullptr);
  CHECK_THAT(told, ContainsSubstring("the run failed in train, epoch 0, batch 0, step 0, while the loader reads"));
  CHECK_THAT(told, ContainsSubstring("while a training batch was copied to the device. Use a smaller batch_size"));
  CHECK_THAT(told, !ContainsSubstring("a smaller model"));
}

}  // namespace faults_test
