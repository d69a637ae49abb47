// Triggers of ModelCheckpoint by interval and by failure; the rest is in
// tests/trainer/checkpointing/checkpointing_test.cpp.
#include "fulgur/callbacks/model_checkpoint.h"

#include "callbacks/scored.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>

#include "support/expect_error.h"
#include "support/fake_run_context.h"

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
  options.every = Interval{value, unit};
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

ModelCheckpoint::Options best_of_score() {
  ModelCheckpoint::Options options;
  options.monitor = "score";
  options.filename = "{step}";
  options.save_last = false;
  return options;
}

/// A fit of five steps an epoch that writes no files: what is requested counts as written once `publish` is called.
struct FakeFit {
  FakeRunContext run;
  ModelCheckpoint callback;
  explicit FakeFit(const ModelCheckpoint::Options& options, const std::optional<StateTree>& from = {},
                   bool is_other_run = false)
      : callback(options) {
    run.folder = "/nowhere";
    run.owns_all = !is_other_run;
    callback.setup(run, TrainerFn::fit);
    if (from) {
      callback.load_state(*from);
      if (!is_other_run) run.last = run.checkpoint_dir() / "step=10.ckpt";
    }
    callback.on_fit_start(run);
    callback.on_train_start(run);
  }
  void epoch(double score) {
    run.metrics["score"] = score;
    run.now.global_step += 5;
    callback.on_train_epoch_end(run);
    ++run.now.epoch;
  }
  const CheckpointRequest& newest() const { return run.requests.back().second; }
  static CheckpointInfo written(const std::pair<uint64_t, CheckpointRequest>& request) {
    return {.ticket = request.first,
            .path = request.second.name.string() + ".ckpt",
            .epoch = 0,
            .global_step = 0,
            .request = request.second};
  }
  void publish() { callback.on_checkpoint_published(run, written(run.requests.back())); }
  void fail() { callback.on_checkpoint_failed(run, written(run.requests.back()), Error("the disk is full")); }
  Names released() const {
    Names names;
    for (const auto& [path, owner] : run.released) {
      CHECK(owner == callback.state_key());
      names.insert(path.string());
    }
    return names;
  }
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
  options.every = Interval{6, Interval::Unit::steps};
  const LogLines log;
  CHECK(train(options, std::make_shared<Scored>(scores)).names ==
        Names{"step=10-score=6.ckpt", "step=15-score=7.ckpt", "step=20-score=8.ckpt"});
  // It is said once why nothing is saved at step 6.
  CHECK(log.count("a save is due at step 6; it waits for the next validation, which logs its monitor 'score'") == 1);
  CHECK(log.count("waits for the next validation") == 1);
}

TEST_CASE("ModelCheckpoint: a metric in filename that was never logged is a warning with the nearest name") {
  auto options = every(1, Interval::Unit::epochs);
  const std::vector<double> scores{5, 6, 7, 8};
  const LogLines log;
  options.filename = "{step}-{score}";
  train(options, std::make_shared<Scored>(scores));
  CHECK(log.count("model_checkpoint.filename_metric") == 0);
  options.filename = "{step}-{scor}";
  train(options, std::make_shared<Scored>(scores));
  CHECK(log.count("ModelCheckpoint.filename: the metric 'scor' was not logged, so it counts as 0") == 1);
  CHECK(log.count("did you mean 'score'?") == 1);
}

TEST_CASE("ModelCheckpoint: triggers exclude each other, and the error names those that are set") {
  ModelCheckpoint::Options options;
  options.every = Interval{8, Interval::Unit::steps};
  const auto message = [&] { return message_of<ConfigError>([&] { ModelCheckpoint made(options); }); };
  options.every_n_epochs = 2;
  CHECK_THAT(message(), ContainsSubstring("every_n_epochs and every exclude"));
  options.every_n_epochs.reset();
  options.every_n_train_steps = 2;
  CHECK_THAT(message(), ContainsSubstring("every_n_train_steps and every exclude"));
  options.every.reset();
  options.train_time_interval = Interval{8, Interval::Unit::seconds};
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

TEST_CASE("ModelCheckpoint: what it requests, and what it releases once a better one is written") {
  FakeFit fit(best_of_score());
  fit.epoch(3);
  REQUIRE(fit.run.requests.size() == 1);
  CHECK(fit.newest().name == "/nowhere/checkpoints/step=5");
  CHECK(fit.newest().reason == "monitor score");
  CHECK(fit.newest().owner == fit.callback.state_key());
  CHECK(fit.newest().score == 3);
  CHECK(fit.newest().best);
  CHECK(fit.newest().keep);
  CHECK_FALSE(fit.newest().weights_only);
  fit.publish();
  fit.epoch(4);
  CHECK(fit.run.requests.size() == 1);
  fit.epoch(2);
  CHECK(fit.run.requests.size() == 2);
  CHECK(fit.released().empty());  // not before the better one is written
  fit.publish();
  CHECK(fit.released() == Names{"/nowhere/checkpoints/step=5.ckpt"});
  CHECK(fit.callback.best_score() == 2);
}

TEST_CASE("ModelCheckpoint save_last requests each, and keeps only what ranks") {
  ModelCheckpoint::Options options = best_of_score();
  options.save_last = true;
  FakeFit fit(options);
  fit.epoch(3);
  fit.publish();
  fit.epoch(NAN);
  CHECK(fit.newest().name.filename() == "step=10");
  CHECK(fit.newest().score == INFINITY);
  CHECK_FALSE(fit.newest().best);
  CHECK_FALSE(fit.newest().keep);
  fit.publish();
  CHECK(fit.released().empty());  // the Trainer keeps it as the last
  options.save_top_k = 0;
  FakeFit none(options);
  none.epoch(3);
  CHECK_FALSE(none.newest().best);
  CHECK_FALSE(none.newest().keep);
  CHECK_FALSE(none.callback.best_score());
}

TEST_CASE("ModelCheckpoint requests one checkpoint a step, and another if that one fails") {
  FakeFit fit(best_of_score());
  fit.epoch(3);
  fit.callback.on_train_epoch_end(fit.run);
  CHECK(fit.run.requests.size() == 1);
  fit.fail();
  CHECK_FALSE(fit.callback.best_score());
  fit.callback.on_train_epoch_end(fit.run);
  REQUIRE(fit.run.requests.size() == 2);
  CHECK(fit.newest().best);
}

TEST_CASE("ModelCheckpoint: a resumed fit ranks on, also what was not yet written") {
  FakeFit first(best_of_score());
  first.epoch(3);
  first.publish();
  first.epoch(2);
  FakeFit second(best_of_score(), first.callback.state());
  CHECK(second.callback.best_score() == 2);
  second.run.now = first.run.now;
  second.run.requests = first.run.requests;
  second.publish();
  CHECK(second.released() == Names{"/nowhere/checkpoints/step=5.ckpt"});
  second.epoch(2.5);
  CHECK(second.run.requests.size() == 2);
  second.epoch(1);
  second.publish();
  CHECK(second.released() == Names{"/nowhere/checkpoints/step=5.ckpt", "/nowhere/checkpoints/step=10.ckpt"});
}

TEST_CASE("ModelCheckpoint: a fit of another run ranks only its own") {
  ModelCheckpoint::Options options = best_of_score();
  options.dirpath = "/shared";
  FakeFit first(options);
  first.epoch(3);
  first.publish();
  first.epoch(2);
  FakeFit second(options, first.callback.state(), /*is_other_run=*/true);
  CHECK_FALSE(second.callback.best_score());
  second.epoch(4);
  REQUIRE(second.run.requests.size() == 1);
  CHECK(second.newest().best);
  second.publish();
  CHECK(second.released().empty());
}

TEST_CASE("ModelCheckpoint: which hook saves, and runs in which none does") {
  struct Case {
    std::string run;
    std::function<void(FakeRunContext&)> change;
    std::optional<bool> on_train_epoch_end;
    std::string saves;  // E: at the end of the training epoch, V: of validation
  };
  const std::vector<Case> cases{
      {"validates at epochs' ends", [](FakeRunContext&) {}, {}, "E"},
      {"validates inside epochs", [](FakeRunContext& run) { run.validates_at_epoch_ends = false; }, {}, "V"},
      {"does not validate", [](FakeRunContext& run) { run.validates = run.validates_at_epoch_ends = false; }, {}, "E"},
      {"validation is asked for", [](FakeRunContext&) {}, false, "V"},
      {"training is asked for", [](FakeRunContext& run) { run.validates_at_epoch_ends = false; }, true, "E"},
      {"the sanity check", [](FakeRunContext& run) { run.is_sanity_check = true; }, {}, ""},
      {"a trial run", [](FakeRunContext& run) { run.is_fast_dev_run = true; }, {}, ""},
      {"an evaluation", [](FakeRunContext& run) { run.function = TrainerFn::validate; }, {}, ""},
  };
  for (const Case& c : cases) {
    INFO(c.run);
    ModelCheckpoint::Options options = best_of_score();
    options.save_on_train_epoch_end = c.on_train_epoch_end;
    std::string saves;
    for (const char hook : {'E', 'V'}) {
      FakeFit fit(options);
      c.change(fit.run);
      fit.run.metrics["score"] = 1;
      fit.run.now.global_step = 5;
      if (hook == 'E') fit.callback.on_train_epoch_end(fit.run);
      if (hook == 'V') fit.callback.on_validation_end(fit.run);
      if (!fit.run.requests.empty()) saves += hook;
    }
    CHECK(saves == c.saves);
  }
}

}  // namespace model_checkpoint_test
