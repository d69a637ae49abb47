// Triggers of ModelCheckpoint by interval and by failure; the rest is in tests/trainer/checkpointing_test.cpp.
#include "fulgur/callbacks/model_checkpoint.h"

#include "callbacks/scored.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>

#include "support/expect_error.h"

namespace model_checkpoint_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

Names checkpoints(const fs::path& run_dir) {
  Names names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints", error))
    if (!entry.is_symlink()) names.insert(entry.path().filename().string());
  return names;
}

ModelCheckpoint::Options every(double value, Interval::Unit unit) {
  ModelCheckpoint::Options options;
  options.every = Interval{.value = value, .unit = unit};
  options.save_top_k = -1;
  options.filename = "{step}";
  return options;
}

struct Trained {
  FitReport report;
  Names names;
};

// Four epochs of five steps of four samples.
Trained train(const ModelCheckpoint::Options& options,
              std::shared_ptr<LightningModule> module = std::make_shared<SelfPlanned>(), int64_t max_steps = -1,
              const CheckpointChoice& from = {}) {
  static TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.max_epochs = 4;
  trainer_options.max_steps = max_steps;
  TrainerComponents components;
  components.add(std::make_shared<ModelCheckpoint>(options));
  Trainer trainer(trainer_options, components);
  Trained run;
  try {
    run.report = trainer.fit(std::move(module), regression_data(20, 4), from);
  } catch (const Error& error) {
    run.report.stop_reason = error.what();
  }
  run.names = checkpoints(trainer.log_dir());
  return run;
}

struct Failing : SelfPlanned {
  int signal;
  explicit Failing(int signal_ = 0) : signal(signal_) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (global_step() == 7 && signal == 0) throw Error("on purpose");
    if (global_step() == 7) std::raise(signal);
    return SelfPlanned::training_step(batch, batch_idx);
  }
};

struct Counting : SelfPlanned {
  std::optional<int64_t> num_tokens(const Batch& batch) const override { return batch.size() * 10; }
};

}  // namespace

TEST_CASE("ModelCheckpoint every: any unit") {
  using Unit = Interval::Unit;
  CHECK(train(every(8, Unit::steps)).names ==
        Names{"step=8.ckpt", "step=16.ckpt", "step=20.ckpt"});  // 20: the end of the fit
  CHECK(train(every(2, Unit::epochs)).names == Names{"step=10.ckpt", "step=20.ckpt"});
  CHECK(train(every(28, Unit::samples)).names == Names{"step=7.ckpt", "step=14.ckpt", "step=20.ckpt"});
  CHECK(train(every(280, Unit::tokens), std::make_shared<Counting>()).names ==
        Names{"step=7.ckpt", "step=14.ckpt", "step=20.ckpt"});
  CHECK(train(every(0.5, Unit::run)).names == Names{"step=10.ckpt", "step=20.ckpt"});
  CHECK(train(every(1e-9, Unit::seconds)).names.size() == 20);
  CHECK(train(every(3600, Unit::seconds)).names == Names{"step=20.ckpt"});
  auto silent = std::make_shared<SelfPlanned>();
  fulgur::detail::ComponentAccess::find_overridden<LightningModule>(*silent);
  CHECK_THAT(train(every(280, Unit::tokens), silent).report.stop_reason, ContainsSubstring("num_tokens"));
}

TEST_CASE("ModelCheckpoint every: multiples count over a resumed run") {
  const auto options = every(8, Interval::Unit::steps);
  const Trained first = train(options, std::make_shared<SelfPlanned>(), 6);
  CHECK(first.names == Names{"step=6.ckpt"});
  const Trained second = train(options, std::make_shared<SelfPlanned>(), -1, first.report.last_checkpoint->string());
  CHECK(second.names ==
        Names{"step=6.ckpt", "step=8.ckpt", "step=16.ckpt", "step=20.ckpt"});  // in the folder of the first
}

TEST_CASE("ModelCheckpoint every: a monitored validation metric is fresh") {
  auto options = every(1, Interval::Unit::epochs);
  options.monitor = "score";
  options.filename = "{step}-{score}";
  const std::vector<double> scores{5, 6, 7, 8};
  CHECK(train(options, std::make_shared<Scored>(scores)).names ==
        Names{"step=5-score=5.ckpt", "step=10-score=6.ckpt", "step=15-score=7.ckpt", "step=20-score=8.ckpt"});
  options.every = Interval{.value = 6, .unit = Interval::Unit::steps};
  const LogLines log;
  CHECK(train(options, std::make_shared<Scored>(scores)).names ==
        Names{"step=10-score=6.ckpt", "step=15-score=7.ckpt", "step=20-score=8.ckpt"});
  // It is said once why nothing is saved at step 6.
  CHECK(log.count("a save is due at step 6; it waits for the next validation, which logs its monitor 'score'") == 1);
  CHECK(log.count("waits for the next validation") == 1);
}

TEST_CASE("ModelCheckpoint: triggers exclude each other, and the error names those that are set") {
  ModelCheckpoint::Options options;
  options.every = Interval{.value = 8, .unit = Interval::Unit::steps};
  const auto message = [&] { return message_of<ConfigError>([&] { ModelCheckpoint made(options); }); };
  options.every_n_epochs = 2;
  CHECK_THAT(message(), ContainsSubstring("every_n_epochs and every exclude"));
  options.every_n_epochs.reset();
  options.every_n_train_steps = 2;
  CHECK_THAT(message(), ContainsSubstring("every_n_train_steps and every exclude"));
  options.every.reset();
  options.train_time_interval = Interval{.value = 8, .unit = Interval::Unit::seconds};
  CHECK_THAT(message(), ContainsSubstring("every_n_train_steps and train_time_interval exclude"));
  options.every_n_train_steps.reset();
  options.train_time_interval->unit = Interval::Unit::steps;
  CHECK_THAT(message(), ContainsSubstring("train_time_interval must be a time"));
  options.train_time_interval.reset();
  options.save_top_k = 2;
  CHECK_THAT(message(), ContainsSubstring("save_top_k: 2 needs a monitor"));
  options = every(0, Interval::Unit::steps);
  CHECK_THAT(message(), ContainsSubstring("longer than 0"));
}

TEST_CASE("ModelCheckpoint save_on_exception keeps what a failed fit had, once, next to the ranked ones") {
  ModelCheckpoint::Options options;
  options.monitor = "val_loss";
  CHECK(train(options, std::make_shared<Failing>()).names == Names{"epoch=0-step=5.ckpt"});
  options.save_on_exception = true;
  const Trained failed = train(options, std::make_shared<Failing>());
  CHECK_THAT(failed.report.stop_reason, ContainsSubstring("on purpose"));
  CHECK(failed.names == Names{"epoch=0-step=5.ckpt", "epoch=1-step=7.ckpt"});
  // The Trainer's own checkpoint at a signal is enough.
  CHECK(train(options, std::make_shared<Failing>(SIGTERM)).names ==
        Names{"epoch=0-step=5.ckpt", "epoch=1-step=8.ckpt"});
  // It is saved already.
  options.monitor.reset();
  options.every_n_train_steps = 7;
  CHECK(train(options, std::make_shared<Failing>()).names == Names{"epoch=1-step=7.ckpt"});
}

}  // namespace model_checkpoint_test
