// Callbacks that are called only in some steps or epochs of a fit.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "callbacks/scored.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "support/expect_error.h"
#include "trainer/config/config_components.h"

namespace callback_filter_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Calls = std::vector<std::string>;

namespace {

struct Recorder : Callback {
  Calls calls;
  void on_train_start(RunContext&) override { calls.push_back("train"); }
  void on_train_end(RunContext&) override { calls.push_back("train ends"); }
  void on_train_epoch_start(RunContext&) override { calls.push_back("epoch"); }
  void on_train_epoch_end(RunContext&) override { calls.push_back("epoch ends"); }
  void on_train_batch_start(RunContext&, const Batch&, int64_t i) override {
    calls.push_back("batch " + std::to_string(i));
  }
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t i) override {
    calls.push_back("batch " + std::to_string(i) + " ends");
  }
  void on_before_zero_grad(RunContext&, Optimizer&) override { calls.push_back("zero_grad"); }
  void on_validation_start(RunContext&) override { calls.push_back("validation"); }
  void on_validation_end(RunContext&) override { calls.push_back("validation ends"); }
  void on_save_checkpoint(RunContext&, StateTree&) override { ++saves; }
  int saves = 0;
};

Interval interval(const char* text) { return *Interval::parse(text); }

// Three epochs of four batches, with two batches in each step: steps 1 to 6.
std::shared_ptr<Recorder> fit(const CallbackFilter& filter,
                              const std::function<void(TrainerOptions&, TrainerComponents&)>& change = {},
                              const CheckpointChoice& from = {}, const TemporaryFolder& folder = {}) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.accumulate_grad_batches = 2;
  auto recorder = std::make_shared<Recorder>();
  recorder->set_common_options(filter);
  TrainerComponents components;
  components.add(recorder);
  if (change) change(options, components);
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(16, 4, 4, false), from);
  return recorder;
}

Calls step(int64_t first) {
  const std::string one = "batch " + std::to_string(first), other = "batch " + std::to_string(first + 1);
  return {one, one + " ends", other, "zero_grad", other + " ends"};
}

template <class... Parts>
Calls joined(const Parts&... parts) {
  Calls out;
  (out.insert(out.end(), parts.begin(), parts.end()), ...);
  return out;
}

const Calls kEpochEnd = {"validation", "validation ends", "epoch ends"};
const Calls kEpoch = joined(Calls{"epoch"}, step(0), step(2), kEpochEnd);
const Calls kStart = {"train"}, kEnd = {"train ends"};

}  // namespace

TEST_CASE("a filter in steps passes the batches of these steps, and the validation that follows one") {
  const Calls part = joined(step(2), kEpochEnd);
  CHECK(fit({.every = interval("2st"), .from = {}, .until = {}, .once = {}})->calls ==
        joined(kStart, part, part, part, kEnd));
  CHECK(fit({.every = {}, .from = {}, .until = {}, .once = interval("3st")})->calls ==
        joined(kStart, Calls{"epoch"}, step(0), kEnd));
  CHECK(fit({.every = {}, .from = interval("5st"), .until = {}, .once = {}})->calls == joined(kStart, kEpoch, kEnd));
  CHECK(fit({.every = {}, .from = interval("3st"), .until = interval("4st"), .once = {}})->calls ==
        joined(kStart, kEpoch, kEnd));
}

TEST_CASE("a filter in epochs passes all hooks of these epochs") {
  CHECK(fit({})->calls == joined(kStart, kEpoch, kEpoch, kEpoch, kEnd));
  CHECK(fit({.every = {}, .from = interval("2ep"), .until = {}, .once = {}})->calls ==
        joined(kStart, kEpoch, kEpoch, kEnd));
  CHECK(fit({.every = interval("2ep"), .from = {}, .until = {}, .once = {}})->calls == joined(kStart, kEpoch, kEnd));
  CHECK(fit({.every = {}, .from = {}, .until = {}, .once = interval("9ep")})->calls == joined(kStart, kEnd));
  CHECK(fit({.every = {}, .from = interval("6st"), .until = {}, .once = interval("3ep")})->calls ==
        joined(kStart, step(2), kEpochEnd, kEnd));
}

TEST_CASE("the sanity check is before the first step; hooks of checkpoints are not filtered") {
  const auto recorder = fit({.every = interval("1st"), .from = {}, .until = {}, .once = {}},
                            [](TrainerOptions& options, TrainerComponents&) { options.num_sanity_val_steps = 1; });
  CHECK(recorder->calls == joined(kStart, kEpoch, kEpoch, kEpoch, kEnd));
  CHECK(fit({.every = {}, .from = {}, .until = {}, .once = interval("9ep")})->saves == 3);
}

TEST_CASE("a resumed run counts on") {
  const TemporaryFolder folder;
  const CallbackFilter second = {.every = {}, .from = {}, .until = {}, .once = interval("2ep")};
  const auto one = [](TrainerOptions& options, TrainerComponents&) { options.max_epochs = 1; };
  CHECK(fit(second, one, {}, folder)->calls == joined(kStart, kEnd));
  CHECK(fit(second, {}, "last", folder)->calls == joined(kStart, kEpoch, kEnd));
}

TEST_CASE("a filter that selects no step or epoch of the fit is reported, unless an earlier process may have called") {
  const auto reports = [](const CallbackFilter& filter, const CheckpointChoice& from = {},
                          const TemporaryFolder& folder = {}) {
    const LogLines lines;
    fit(filter, {}, from, folder);
    if (lines.count("[trainer.never_called]") == 1) CHECK(lines.count(cat(" (", filter.text(), ")")) == 1);
    return lines.count("[trainer.never_called]");
  };
  const auto every = [](const char* text) {
    return CallbackFilter{.every = interval(text), .from = {}, .until = {}, .once = {}};
  };
  const auto from = [](const char* text) {
    return CallbackFilter{.every = {}, .from = interval(text), .until = {}, .once = {}};
  };
  const auto once = [](const char* text) {
    return CallbackFilter{.every = {}, .from = {}, .until = {}, .once = interval(text)};
  };
  // The fit has 6 steps in 3 epochs.
  CHECK(reports(once("9ep")) == 1);
  CHECK(reports(from("7st")) == 1);
  CHECK(reports(every("7st")) == 1);
  CHECK(reports({.every = {}, .from = interval("5st"), .until = interval("1ep"), .once = {}}) == 1);
  CHECK(reports(every("6st")) == 0);
  CHECK(reports(once("3ep")) == 0);
  CHECK(reports({.every = {}, .from = {}, .until = interval("1st"), .once = {}}) == 0);
  CHECK(reports({}) == 0);

  const TemporaryFolder folder;
  fit(
      {}, [](TrainerOptions& options, TrainerComponents&) { options.max_epochs = 1; }, {}, folder);
  CHECK(reports(once("1ep"), "last", folder) == 0);
  const LogLines trial;
  fit(once("9ep"), [](TrainerOptions& options, TrainerComponents&) { options.fast_dev_run.batches = 2; });
  CHECK(trial.count("[trainer.never_called]") == 0);
}

TEST_CASE("a callback that is added as a Callback has all its hooks called") {
  const TemporaryFolder folder;
  auto recorder = std::make_shared<Recorder>();
  TrainerOptions options = quiet(folder);
  options.accumulate_grad_batches = 2;
  TrainerComponents components;
  components.add(std::shared_ptr<Callback>(recorder));
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(16, 4, 4, false));
  CHECK(recorder->calls == joined(kStart, kEpoch, kEnd));
}

TEST_CASE("validate and test call a filtered callback") {
  const TemporaryFolder folder;
  auto recorder = std::make_shared<Recorder>();
  recorder->set_common_options({.every = {}, .from = {}, .until = {}, .once = interval("9ep")});
  TrainerComponents components;
  components.add(recorder);
  Trainer(quiet(folder), components).validate(std::make_shared<SelfPlanned>(), regression_data(16, 4, 4, false));
  CHECK(recorder->calls == Calls{"validation", "validation ends"});
}

TEST_CASE("the last step of a run belongs to the epoch of its batch") {
  Progress progress;
  const auto is_at = [&](int64_t step, int64_t epoch) {
    const CallbackFilter::Position last = Callback::last_position(progress);
    return last.step == step && last.epoch == epoch;
  };
  CHECK(is_at(0, 1));
  progress.epochs.started = 1;
  progress.batches.completed = 2;
  progress.global_step = 2;
  CHECK(is_at(2, 1));
  progress.epoch = 1;
  progress.batches.completed = 0;
  CHECK(is_at(2, 1));
  progress.epochs.started = 2;  // without a batch
  CHECK(is_at(2, 1));
  progress.batches.completed = 1;
  progress.global_step = 3;
  CHECK(is_at(3, 2));
}

TEST_CASE("filters that are wrong are refused") {
  const auto refused = [](const CallbackFilter& filter) {
    return message_of<ConfigError>([&] { Recorder().set_common_options(filter); });
  };
  CHECK_THAT(refused({.every = interval("0st"), .from = {}, .until = {}, .once = {}}),
             ContainsSubstring("`every` is a whole number of steps or epochs from 1 on; got 0st"));
  CHECK_THAT(refused({.every = {}, .from = interval("1.5ep"), .until = {}, .once = {}}), ContainsSubstring("`from`"));
  CHECK_THAT(refused({.every = {}, .from = {}, .until = {}, .once = interval("3s")}), ContainsSubstring("`once`"));
  CHECK_THAT(refused({.every = {}, .from = interval("3ep"), .until = interval("2ep"), .once = {}}),
             ContainsSubstring("never be called"));
}

TEST_CASE("a config names filters beside the class path, and the command line sets them") {
  const Config config = load("trainer: {callbacks: [{class_path: ConfigCallback, every: 2st, from: 2ep}]}",
                             {{"trainer.callbacks.0.every", "5st"},
                              {"trainer.callbacks+", "ConfigCallback"},
                              {"trainer.callbacks.once", "5ep"}});
  CHECK(value_at(config, "trainer.callbacks.0.every") == "5st");
  CHECK(value_at(config, "trainer.callbacks.0.from") == "2ep");
  CHECK(value_at(config, "trainer.callbacks.0.once") == "missing");
  CHECK(value_at(config, "trainer.callbacks.1.once") == "5ep");
  const std::shared_ptr<Callback> first = config.trainer.callbacks.at(0).create();
  CHECK(first->filter().every->text() == "5st");
  CHECK(first->filter().from->text() == "2ep");
  CHECK_FALSE(first->filter().once);
  const auto error = [](const std::string& keys) {
    return load_error("trainer: {callbacks: [{class_path: " + keys + "}]}");
  };
  CHECK_THAT(error("ConfigCallback, every: 3min"), ContainsSubstring("trainer.callbacks.0.every"));
  CHECK_THAT(error("ConfigCallback, evry: 3st"), ContainsSubstring("unknown key; did you mean 'every'?"));
  // `every` is an option of this class.
  CHECK_THAT(error("ModelCheckpoint, every: 3st"), ContainsSubstring("belong under init_args"));
  CHECK_THAT(error("ModelCheckpoint, every: 3st"),
             ContainsSubstring("unknown key; ModelCheckpoint has its own `every`, and options of a component belong "
                               "under init_args: {every: 3st}"));
  CHECK(
      load("trainer: {callbacks: [ModelCheckpoint]}", {{"trainer.callbacks.every", "3st"}}).trainer.callbacks.size() ==
      1);
}

}  // namespace callback_filter_test
