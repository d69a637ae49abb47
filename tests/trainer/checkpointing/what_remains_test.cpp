// What a run leaves to the caller and on disk when it does not end at its limits.
#include <csignal>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "support/shown_lines.h"
#include "trainer/boring.h"

namespace what_remains_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

TrainerComponents saving_each_step() {
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 1;
  saving.save_top_k = -1;
  TrainerComponents components;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  return components;
}

/// Gets SIGTERM, or throws, in a batch.
struct Ends : SelfPlanned {
  int64_t signal_at = -1, throw_at = -1, batches = 0;
  StepOutput training_step(const Batch& b, int64_t i) override {
    if (batches == throw_at) throw Error("enough");
    if (batches++ == signal_at) ::raise(SIGTERM);
    return SelfPlanned::training_step(b, i);
  }
  Outputs test_step(const Batch& b, int64_t i, int64_t l) override {
    if (i == 1) ::raise(SIGTERM);
    return SelfPlanned::test_step(b, i, l);
  }
};

}  // namespace

TEST_CASE("a signal inside a window saves its batches, also if the window's first step is saved already") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accumulate_grad_batches = 4;
  auto module = std::make_shared<Ends>();
  module->signal_at = 6;
  const FitReport report = Trainer(options, saving_each_step()).fit(module, regression_data());
  CHECK(report.exit_code == ExitCode::preempted);
  const StateTree progress = read_checkpoint(*report.last_checkpoint).state.at("progress");
  CHECK(progress.at("batches").at("completed").as_int() == 7);
  CHECK(progress.at("global_step").as_int() == 1);
}

TEST_CASE("a resume of a run that has finished gives its weights and metrics") {
  const TemporaryFolder folder;
  auto trained = std::make_shared<SelfPlanned>(), again = std::make_shared<SelfPlanned>();
  const FitReport first = Trainer(quiet(folder), saving_each_step()).fit(trained, regression_data());
  const FitReport second = Trainer(quiet(folder), saving_each_step()).fit(again, regression_data(), "auto");
  CHECK(second.stop_reason == "finished: max_epochs");
  CHECK(same_weights(weights(*trained), weights(*again)));
  CHECK(second.metric("train_loss") == first.metric("train_loss"));
  // Another module keeps what does not fit, and says so.
  struct Other : SelfPlanned {
    torch::nn::Linear more = register_module("more", torch::nn::Linear(1, 1));
  };
  auto other = std::make_shared<Other>();
  const std::string lines =
      shown_lines([&] { Trainer(quiet(folder), saving_each_step()).fit(other, regression_data(), "auto"); });
  CHECK(lines.find("more.weight") != std::string::npos);
}

TEST_CASE("last is the checkpoint of a fit that threw, as its report says") {
  const TemporaryFolder folder;
  auto module = std::make_shared<Ends>();
  Trainer trainer(quiet(folder), saving_each_step());
  trainer.fit(module, regression_data());
  module->throw_at = module->batches + 3;
  CHECK_THROWS(trainer.fit(module, regression_data()));
  const auto last = trainer.last_fit()->last_checkpoint;
  REQUIRE(last);
  const EvalReport report = trainer.validate(module, regression_data(), "last");
  CHECK(report.checkpoint == last);
}

TEST_CASE("the report of an evaluation that a signal ends says where it was") {
  const TemporaryFolder folder;
  auto module = std::make_shared<Ends>();
  Trainer trainer(quiet(folder), saving_each_step());
  const FitReport fit = trainer.fit(module, regression_data());
  const EvalReport report = trainer.test(module, regression_data(), "last");
  CHECK(report.exit_code == ExitCode::terminated);
  CHECK(report.checkpoint == fit.last_checkpoint);
  CHECK(!report.run_dir.empty());
}

}  // namespace what_remains_test
