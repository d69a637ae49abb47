#include "fulgur/callbacks/on_exception_checkpoint.h"

#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <functional>
#include <set>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "support/expect_error.h"

namespace on_exception_checkpoint_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

// Fails, or gets a signal, before the batch in which `step` steps are done.
struct Failing : SelfPlanned {
  int64_t step;
  int signal;
  explicit Failing(int64_t step_, int signal_ = 0) : step(step_), signal(signal_) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (global_step() == step && signal == 0) throw Error("on purpose");
    if (global_step() == step) std::raise(signal);
    return SelfPlanned::training_step(batch, batch_idx);
  }
};

std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.insert(entry.path().filename().string());
  return names;
}

struct Runner {
  TemporaryFolder folder;
  OnExceptionCheckpoint::Options options{.dirpath = folder / "crashed", .filename = "on_exception"};
  fs::path log_dir;

  // Two epochs of ten steps; `module` may fail.
  FitReport fit(std::shared_ptr<LightningModule> module, const std::function<void(TrainerOptions&)>& change = {},
                const CheckpointChoice& from = {}) {
    TrainerOptions trainer_options = quiet(folder);
    trainer_options.max_epochs = 2;
    if (change) change(trainer_options);
    TrainerComponents components;
    components.seed = 1;
    components.add(std::make_shared<OnExceptionCheckpoint>(options));
    Trainer trainer(trainer_options, components);
    struct Note {
      Runner& runner;
      Trainer& trainer;
      ~Note() { runner.log_dir = trainer.log_dir(); }
    } note{*this, trainer};
    return trainer.fit(std::move(module), regression_data(), from);
  }
  void fail(int64_t step) { CHECK_THROWS_AS(fit(std::make_shared<Failing>(step)), Error); }
  std::set<std::string> crashed() const { return listing(folder / "crashed"); }
};

}  // namespace

TEST_CASE("OnExceptionCheckpoint: a fit that fails leaves a checkpoint, the next one resumes from it and removes it") {
  Runner runner;
  runner.fail(13);
  CHECK(runner.crashed() == std::set<std::string>{"on_exception.ckpt"});
  CHECK(summarize_checkpoint(runner.folder / "crashed/on_exception.ckpt").global_step == 13);
  const FitReport report = runner.fit(std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.max_steps = 14; });
  CHECK(report.global_step == 14);
  CHECK(report.stop_reason == "max_steps");
  CHECK(runner.crashed().empty());
  // Nothing to continue from any more.
  CHECK(runner.fit(std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.max_steps = 1; }).global_step == 1);
}

TEST_CASE("OnExceptionCheckpoint: a trial run leaves the checkpoint of a failed fit") {
  Runner runner;
  runner.fail(13);
  runner.fit(std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.fast_dev_run.batches = 1; });
  CHECK(runner.crashed() == std::set<std::string>{"on_exception.ckpt"});
}

TEST_CASE("OnExceptionCheckpoint: if several fits fail only the newest checkpoint counts") {
  Runner runner;
  runner.fail(5);
  runner.fail(9);
  CHECK(runner.crashed().size() == 1);
  OnExceptionCheckpoint callback(runner.options);
  REQUIRE(callback.resume_candidate());
  CHECK(summarize_checkpoint(*callback.resume_candidate()).global_step == 9);
  CHECK(runner.fit(std::make_shared<SelfPlanned>()).global_step == 20);
  CHECK(runner.crashed().empty());
}

TEST_CASE("OnExceptionCheckpoint: a signal counts as a failure, and ckpt_path wins over resuming") {
  Runner runner;
  const FitReport report = runner.fit(std::make_shared<Failing>(5, SIGINT));
  CHECK(report.exit_code == ExitCode::interrupted);
  CHECK(runner.crashed() == std::set<std::string>{"on_exception.ckpt"});
  CHECK(summarize_checkpoint(runner.folder / "crashed/on_exception.ckpt").global_step == 6);
  runner.options.filename = "other";
  runner.fail(3);
  runner.options.filename = "on_exception";
  const FitReport chosen = runner.fit(
      std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.max_steps = 4; },
      (runner.folder / "crashed/other.ckpt").string());
  CHECK(chosen.global_step == 4);  // not at 6, which is over the limit already
  CHECK(runner.crashed() == std::set<std::string>{"other.ckpt"});
}

TEST_CASE("OnExceptionCheckpoint writes nothing before the first batch is done, in a trial run and outside fit") {
  struct BadPlan : BoringModule {
    OptimizerPlan configure_optimizers() override { throw ConfigError("wrong on purpose"); }
    Outputs validation_step(const Batch&, int64_t, int64_t) override { throw Error("on purpose"); }
  };
  Runner runner;
  runner.fail(0);
  CHECK_THROWS_AS(runner.fit(std::make_shared<BadPlan>()), ConfigError);
  CHECK_THROWS_AS(runner.fit(std::make_shared<Failing>(1), [](TrainerOptions& o) { o.fast_dev_run.batches = 2; }),
                  Error);
  TrainerComponents components;
  components.add(std::make_shared<OnExceptionCheckpoint>(runner.options));
  CHECK_THROWS_AS(Trainer(quiet(runner.folder), components).validate(std::make_shared<BadPlan>(), regression_data()),
                  Error);
  CHECK(runner.crashed().empty());
  // A resumed fit that fails in its first batch has nothing new either.
  runner.fail(5);
  const auto before = fs::last_write_time(runner.folder / "crashed/on_exception.ckpt/state.json");
  runner.fail(5);
  CHECK(runner.crashed() == std::set<std::string>{"on_exception.ckpt"});
  CHECK(fs::last_write_time(runner.folder / "crashed/on_exception.ckpt/state.json") == before);
}

TEST_CASE("OnExceptionCheckpoint without dirpath writes into the run folder, and no run resumes from there") {
  Runner runner;
  runner.options.dirpath.reset();
  runner.options.filename = "crash";
  runner.fail(5);
  CHECK(listing(runner.log_dir / "checkpoints").contains("crash.ckpt"));
  CHECK(runner.fit(std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.max_steps = 1; }).global_step == 1);
}

TEST_CASE("OnExceptionCheckpoint recognises only its own folders") {
  Runner runner;
  const fs::path crashed = runner.folder / "crashed";
  for (const char* name : {"on_exception.ckpt", "on_exception-v.ckpt", "on_exception-v2x.ckpt", "on_exception2.ckpt",
                           "my_on_exception.ckpt"})
    fs::create_directories(crashed / name);
  for (const char* name :
       {"on_exception-v.ckpt", "on_exception-v2x.ckpt", "on_exception2.ckpt", "my_on_exception.ckpt"})
    write_text(crashed / name / "state.json", "{}");
  const OnExceptionCheckpoint callback(runner.options);
  CHECK_FALSE(callback.resume_candidate());  // a folder without a state is not a checkpoint
  const auto before = runner.crashed();
  runner.fit(std::make_shared<SelfPlanned>());
  CHECK(runner.crashed() == before);
  for (const char* name : {"", "a/b", ".hidden", "../x"})
    CHECK_THAT(message_of<ConfigError>([&] { OnExceptionCheckpoint({.dirpath = crashed, .filename = name}); }),
               ContainsSubstring("filename must be a name"));
}

}  // namespace on_exception_checkpoint_test
