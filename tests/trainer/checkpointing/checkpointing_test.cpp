// What ModelCheckpoint asks for and what then is on disk.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <set>
#include <thread>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/text.h"

namespace checkpointing_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

// Logs the scores it is given, one per epoch.
struct Scored : SelfPlanned {
  std::vector<double> scores;
  explicit Scored(std::vector<double> list) : scores(std::move(list)) {}
  Outputs validation_step(const Batch&, int64_t, int64_t) override { return {}; }
  void on_validation_epoch_end() override { log("score", scores[static_cast<size_t>(run().progress().validations)]); }
};

std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

struct Trained {
  FitReport report;
  std::set<std::string> files;
};

Trained train(ModelCheckpoint::Options options, std::vector<double> scores, TrainerOptions trainer_options) {
  trainer_options.max_epochs = static_cast<int64_t>(scores.size());
  TrainerComponents components;
  components.callbacks = {std::make_shared<ModelCheckpoint>(options)};
  Trained run;
  run.report = Trainer(trainer_options, components)
                   .fit(std::make_shared<Scored>(scores), regression_data(8, 4));  // 2 steps an epoch
  run.files = listing(run.report.run_dir / "checkpoints");
  return run;
}

}  // namespace

TEST_CASE("ModelCheckpoint keeps the best and the newest; best.ckpt and last.ckpt point to them") {
  TemporaryFolder folder;
  ModelCheckpoint::Options options;
  options.monitor = "score";
  options.mode = MonitorMode::max;
  const Trained run = train(options, {0.1, 0.9, 0.3, 0.2}, quiet(folder));
  CHECK(run.files == std::set<std::string>{"epoch=1-step=4.ckpt", "epoch=3-step=8.ckpt", "best.ckpt", "last.ckpt"});
  CHECK(run.report.best_checkpoint->filename() == "epoch=1-step=4.ckpt");
  CHECK(fs::read_symlink(run.report.run_dir / "checkpoints/best.ckpt") == "epoch=1-step=4.ckpt");
  CHECK(fs::read_symlink(run.report.run_dir / "checkpoints/last.ckpt") == "epoch=3-step=8.ckpt");
}

TEST_CASE("save_top_k keeps k of them, in both modes, and a NaN is the worst") {
  TemporaryFolder folder;
  ModelCheckpoint::Options options;
  options.monitor = "score";
  options.save_top_k = 2;
  options.save_last = false;
  options.filename = "{epoch}-{score:.1f}";
  const Trained least = train(options, {0.4, NAN, 0.2, 0.3, 0.25}, quiet(folder));
  // The newest stays for last.ckpt if it is ranked anyway.
  CHECK(least.files ==
        std::set<std::string>{"epoch=2-score=0.2.ckpt", "epoch=4-score=0.2.ckpt", "best.ckpt", "last.ckpt"});
  options.save_top_k = -1;
  CHECK(train(options, {0.1, 0.2, 0.3}, quiet(folder)).files.size() == 5);
  options.save_top_k = 0;
  const Trained none = train(options, {0.1, 0.2}, quiet(folder));
  CHECK(none.files ==
        std::set<std::string>{"epoch=1-step=4.ckpt", "last.ckpt"});  // a fit always ends with a checkpoint
}

TEST_CASE("the epoch of a checkpoint is that of its name, in summaries and for callbacks") {
  struct Published : Callback {
    std::vector<CheckpointInfo> all;
    void on_checkpoint_published(RunContext&, const CheckpointInfo& info) override { all.push_back(info); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  const auto published = std::make_shared<Published>();
  TrainerComponents components;
  for (const int64_t every_n_steps : {0, 4}) {
    ModelCheckpoint::Options how;
    how.save_top_k = -1;
    if (every_n_steps > 0) how.every_n_train_steps = every_n_steps;
    components.callbacks.push_back(std::make_shared<ModelCheckpoint>(how));
  }
  components.callbacks.push_back(published);
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data());
  REQUIRE(published->all.size() > 5);
  for (const CheckpointInfo& info : published->all) {
    const std::string name = info.path.filename().string();
    CAPTURE(name);
    const std::string epoch = name.substr(6, name.find('-') - 6);
    CHECK(std::to_string(info.epoch) == epoch);
    CHECK(std::to_string(summarize_checkpoint(info.path).epoch) == epoch);
  }
}

TEST_CASE("a fit always ends with a checkpoint") {
  SECTION("after max_steps in mid-epoch") {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_steps = 3;
    const Trained run = train({}, {1, 1}, options);
    CHECK(run.report.stop_reason == "max_steps");
    CHECK(run.files.contains("epoch=1-step=3.ckpt"));
    CHECK(run.report.last_checkpoint->filename() == "epoch=1-step=3.ckpt");
    CHECK(run.report.best_checkpoint == run.report.last_checkpoint);  // no monitor: the newest is the best
  }
  SECTION("without validation") {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.limit_val_batches = 0;
    CHECK(train({}, {1}, options).files == std::set<std::string>{"epoch=0-step=2.ckpt", "best.ckpt", "last.ckpt"});
  }
  SECTION("when the monitored metric has not been logged") {
    TemporaryFolder folder;
    ModelCheckpoint::Options options;
    options.monitor = "score";
    TrainerOptions short_fit = quiet(folder);
    short_fit.max_steps = 1;
    const Trained run = train(options, {1, 1}, short_fit);
    CHECK(run.files == std::set<std::string>{"epoch=0-step=1.ckpt", "last.ckpt"});
    CHECK_FALSE(run.report.best_checkpoint);
  }
}

TEST_CASE("triggers by steps and by validation, and several callbacks in one run") {
  TemporaryFolder folder;
  ModelCheckpoint::Options by_step;
  by_step.every_n_train_steps = 3;
  by_step.save_top_k = -1;
  by_step.filename = "s{step}";
  by_step.auto_insert_metric_name = false;
  ModelCheckpoint::Options by_score;
  by_score.monitor = "score";
  by_score.every_n_epochs = 2;
  by_score.filename = "best-{epoch}";
  by_score.auto_insert_metric_name = false;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 4;
  TrainerComponents components;
  components.callbacks = {std::make_shared<ModelCheckpoint>(by_step), std::make_shared<ModelCheckpoint>(by_score)};
  const FitReport report = Trainer(options, components)
                               .fit(std::make_shared<Scored>(std::vector<double>{4, 3, 2, 1}), regression_data(8, 4));
  const auto files = listing(report.run_dir / "checkpoints");
  CHECK(files.contains("s3.ckpt"));
  CHECK(files.contains("s6.ckpt"));
  CHECK(files.contains("best-3.ckpt"));
  CHECK_FALSE(files.contains("best-1.ckpt"));
}

TEST_CASE("a step trigger with a monitored validation metric waits for its fresh value") {
  TemporaryFolder folder;
  ModelCheckpoint::Options options;
  options.monitor = "score";
  options.mode = MonitorMode::max;
  options.every_n_train_steps = 1;
  options.save_top_k = -1;
  options.filename = "{step}-{score}";
  const Trained run = train(options, {5, 7}, quiet(folder));
  // Steps 1 and 3 have no new value: nothing is saved before validation.
  CHECK(run.files == std::set<std::string>{"step=2-score=5.ckpt", "step=4-score=7.ckpt", "best.ckpt", "last.ckpt"});
}

TEST_CASE("a save that waits for a validation is not lost by a resume before it") {
  // Four steps an epoch: due at the third, ranked by the validation after the fourth.
  const auto run = [](const TemporaryFolder& folder, int64_t max_steps, const CheckpointChoice& from) {
    ModelCheckpoint::Options options;
    options.monitor = "score";
    options.every_n_train_steps = 3;
    options.save_top_k = -1;
    options.filename = "ranked-{step}";
    TrainerOptions trainer_options = quiet(folder);
    trainer_options.max_steps = max_steps;
    TrainerComponents components;
    components.add(std::make_shared<ModelCheckpoint>(options));
    return Trainer(trainer_options, components)
        .fit(std::make_shared<Scored>(std::vector<double>{5, 7}), regression_data(16, 4), from);
  };
  TemporaryFolder whole, cut;
  CHECK(listing(run(whole, -1, {}).run_dir / "checkpoints").contains("ranked-step=4.ckpt"));
  const FitReport first = run(cut, 3, {});
  REQUIRE(first.last_checkpoint);
  REQUIRE_FALSE(listing(first.run_dir / "checkpoints").contains("ranked-step=4.ckpt"));
  CHECK(listing(run(cut, -1, first.last_checkpoint->string()).run_dir / "checkpoints").contains("ranked-step=4.ckpt"));
}

TEST_CASE("train_time_interval saves when the time has passed") {
  TemporaryFolder folder;
  ModelCheckpoint::Options options;
  options.train_time_interval = Interval{1e-9, Interval::Unit::seconds};
  options.save_top_k = -1;
  const Trained run = train(options, {1, 1}, quiet(folder));
  CHECK(run.files == std::set<std::string>{"epoch=0-step=1.ckpt", "epoch=0-step=2.ckpt", "epoch=1-step=3.ckpt",
                                           "epoch=1-step=4.ckpt", "best.ckpt", "last.ckpt"});
}

TEST_CASE("save_on_train_epoch_end false saves after validation, with dirpath elsewhere") {
  TemporaryFolder folder;
  ModelCheckpoint::Options options;
  options.save_on_train_epoch_end = false;
  options.dirpath = folder / "elsewhere";
  const Trained run = train(options, {1}, quiet(folder));
  CHECK(fs::exists(folder / "elsewhere/epoch=0-step=2.ckpt/model.safetensors"));
  // last.ckpt of the run still finds it.
  CHECK(fs::exists(run.report.run_dir / "checkpoints/last.ckpt/state.json"));
}

TEST_CASE("save_weights_only writes no optimizer, and the run still ends with a whole checkpoint") {
  TemporaryFolder folder;
  ModelCheckpoint::Options options;
  options.save_weights_only = true;
  options.filename = "weights";
  const Trained run = train(options, {1}, quiet(folder));
  const fs::path checkpoints = run.report.run_dir / "checkpoints";
  CHECK(read_checkpoint(checkpoints / "weights.ckpt").state.at("weights_only").as_bool());
  CHECK_FALSE(read_checkpoint(checkpoints / "last.ckpt").state.at("weights_only").as_bool());
}

TEST_CASE("evaluation from best gives the value of that epoch, in the same process and by path") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 4;
  ModelCheckpoint::Options checkpoint;
  checkpoint.monitor = "val_loss";
  TrainerComponents components;
  auto logger = std::make_shared<MemoryLogger>();
  components.callbacks = {std::make_shared<ModelCheckpoint>(checkpoint)};
  components.loggers = {logger};
  Trainer trainer(options, components);
  auto data = regression_data();
  const FitReport fit = trainer.fit(std::make_shared<SelfPlanned>(), data);
  double best = INFINITY;
  for (const auto& [step, value] : logger->values("val_loss")) best = std::min(best, value);
  const EvalReport report = trainer.validate(std::make_shared<SelfPlanned>(), data, "best");
  CHECK(report.loaders[0][0].second == best);
  CHECK(report.checkpoint == fit.best_checkpoint);
  Trainer other(options);
  CHECK(other.validate(std::make_shared<SelfPlanned>(), data, fit.best_checkpoint->string()).loaders[0][0].second ==
        best);
}

TEST_CASE("a save that fails ends the run with exit code 4, and the checkpoint before is intact") {
  struct Blocking : Callback {
    bool failed = false;
    void on_train_epoch_end(RunContext& run) override {
      if (run.progress().epoch != 1) return;
      // The save of the epoch before may be on its way.
      while (!fs::exists(run.checkpoint_dir() / "epoch=0-step=2.ckpt")) std::this_thread::yield();
      // The checkpoint folder becomes a file.
      fs::rename(run.checkpoint_dir(), run.log_dir() / "saved");
      test::write_text(run.checkpoint_dir(), "in the way");
    }
    void on_checkpoint_failed(RunContext&, const CheckpointInfo&, const std::exception&) override { failed = true; }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  auto blocking = std::make_shared<Blocking>();
  TrainerComponents components;
  components.callbacks = {blocking};
  Trainer trainer(options, components);
  try {
    trainer.fit(std::make_shared<SelfPlanned>(), regression_data(8, 4));
    FAIL("the save did not fail");
  } catch (const CheckpointError& error) {
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK_THAT(error.what(), ContainsSubstring("checkpoints"));
  }
  CHECK(blocking->failed);
  CHECK(read_checkpoint(trainer.log_dir() / "saved/epoch=0-step=2.ckpt").module.size() == 4);
}

namespace {

// Once there is a checkpoint, their folder is a file, until a save has failed.
struct Blocking : Callback {
  std::vector<int64_t> published, failed;
  bool blocked = false;
  void on_train_epoch_end(RunContext& run) override {
    if (blocked || published.empty()) return;
    blocked = true;
    fs::rename(run.checkpoint_dir(), run.log_dir() / "saved");
    test::write_text(run.checkpoint_dir(), "in the way");
  }
  void on_checkpoint_failed(RunContext& run, const CheckpointInfo& info, const std::exception&) override {
    failed.push_back(info.global_step);
    fs::remove(run.checkpoint_dir());
    fs::rename(run.log_dir() / "saved", run.checkpoint_dir());
  }
  void on_checkpoint_published(RunContext&, const CheckpointInfo& info) override {
    published.push_back(info.global_step);
  }
};

}  // namespace

TEST_CASE(
    "F5 F7 on_save_error continue: it is reported, training continues, the checkpoint before and those after are "
    "whole") {
  for (const bool async : {true, false}) {
    CAPTURE(async);
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 100;
    options.on_save_error = OnSaveError::proceed;
    options.async_checkpoint = async;
    auto blocking = std::make_shared<Blocking>();
    TrainerComponents components;
    components.callbacks = {blocking};
    ModelCheckpoint::Options saving;
    saving.save_top_k = -1;
    components.add(std::make_shared<ModelCheckpoint>(saving));
    const FitReport report = Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 0));
    CHECK(report.epochs == 100);
    CHECK(blocking->failed.size() == 1);
    CHECK(blocking->published.size() == 99);
    CHECK(blocking->published.back() == 200);
    const auto all = list_checkpoints(report.run_dir / "checkpoints");
    CHECK(all.size() >= 99);  // one may have been written, and only its link have failed
    for (const auto& summary : all) CHECK(verify_checkpoint(summary.path).ok());
  }
}

TEST_CASE("F52 an asynchronous save that fails surfaces at the next step, a synchronous one in its own") {
  struct Never : Blocking {
    void on_train_batch_start(RunContext& run, const Batch&, int64_t) override {
      last_begun = run.progress().global_step;
    }
    int64_t last_begun = -1;
  };
  for (const bool async : {true, false}) {
    CAPTURE(async);
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 1000;
    options.async_checkpoint = async;
    auto never = std::make_shared<Never>();
    TrainerComponents components;
    components.callbacks = {never};
    CHECK_THROWS_AS(Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(400, 0)),
                    CheckpointError);
    // 100 steps an epoch: at once, or before the next one is over.
    CHECK(never->failed.size() == 1);
    CHECK(never->last_begun < never->failed.front() + (async ? 100 : 0));
  }
}

TEST_CASE("F54 the same seed gives the same bits; validation does not advance the generators of training") {
  const auto run = [](uint64_t seed, bool validates, bool sanity) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    options.num_sanity_val_steps = sanity ? 2 : 0;
    if (!validates) options.limit_val_batches = BatchLimit(int64_t{0});
    TrainerComponents components;
    components.seed = seed;
    at::manual_seed(3);
    auto module = std::make_shared<SelfPlanned>(0.3);
    Trainer(options, components).fit(module, regression_data());
    return weights(*module);
  };
  const auto first = run(5, true, true);
  CHECK(same_weights(first, run(5, true, true)));
  CHECK(same_weights(first, run(5, true, false)));
  CHECK(same_weights(first, run(5, false, false)));
  CHECK_FALSE(same_weights(first, run(6, true, true)));
}

TEST_CASE("best.ckpt belongs to the callback that monitors a metric, whichever comes first, also after a resume") {
  // The loss of validation rises: the first epoch is the best.
  struct Rising : SelfPlanned {
    Outputs validation_step(const Batch&, int64_t, int64_t) override {
      log("val_loss", static_cast<double>(run().progress().epoch));
      return {};
    }
  };
  for (const bool monitored_first : {true, false}) {
    CAPTURE(monitored_first);
    TemporaryFolder folder;
    const auto fit = [&](int64_t epochs, const CheckpointChoice& from) {
      TrainerOptions options = quiet(folder);
      options.max_epochs = epochs;
      ModelCheckpoint::Options monitored, newest;
      monitored.monitor = "val_loss";
      monitored.filename = "monitored-{epoch}";
      newest.filename = "newest-{epoch}";
      const auto a = std::make_shared<ModelCheckpoint>(monitored), b = std::make_shared<ModelCheckpoint>(newest);
      TrainerComponents components;
      components.add(monitored_first ? a : b);
      components.add(monitored_first ? b : a);
      return Trainer(options, components).fit(std::make_shared<Rising>(), regression_data(), from);
    };
    CHECK(fit(2, {}).best_checkpoint->filename() == "monitored-epoch=0.ckpt");
    CHECK(fit(4, "auto").best_checkpoint->filename() == "monitored-epoch=0.ckpt");
  }
}

}  // namespace checkpointing_test
