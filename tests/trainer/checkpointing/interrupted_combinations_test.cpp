// What interrupts a run, together with options that decide where it continues and when it ends.
#include "callbacks/scored.h"
#include "trainer/checkpointing/interrupted.h"

#include <torch/nn/modules/batchnorm.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "checkpointing/resume.h"
#include "fulgur/callbacks/early_stopping.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/loggers/csv_logger.h"
#include "support/expect_error.h"

namespace interrupted_combinations_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::test::interrupted;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

std::shared_ptr<CsvLogger> version(int64_t number) {
  CsvLogger::Options options;
  options.version = number;
  return std::make_shared<CsvLogger>(options);
}

std::function<void(TrainerOptions&, TrainerComponents&)> as_version(int64_t number, int64_t max_epochs = 2) {
  return [=](TrainerOptions& options, TrainerComponents& components) {
    options.max_epochs = max_epochs;
    components.loggers = {version(number)};
  };
}

size_t folders_in(const fs::path& root) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(root), fs::directory_iterator()));
}

std::set<std::string> names_in(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("a signal before min_epochs or min_steps is no stop that the resumed run has still to make") {
  const TemporaryFolder folder;
  const auto minimum = [](TrainerOptions& options, TrainerComponents&) {
    options.min_epochs = 3;
    options.min_steps = 25;
  };
  const FitReport first = fit(folder, {.ends_at = 4, .change = minimum});
  CHECK(first.stop_reason == "signal 15");
  const FitReport second = fit(folder, {.from = "auto", .change = minimum});
  CHECK(second.epochs == 6);
  CHECK(second.stop_reason == "max_epochs");
}

TEST_CASE("a stop that was requested before a signal is made by the resumed run") {
  struct Stopping : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step == 3) run.request_stop("enough");
    }
  };
  const TemporaryFolder folder;
  const auto minimum = [](TrainerOptions& options, TrainerComponents& components) {
    options.min_epochs = 3;
    components.add(std::make_shared<Stopping>());
  };
  CHECK(fit(folder, {.ends_at = 14, .change = minimum}).stop_reason == "signal 15");
  const FitReport second = fit(folder, {.from = "auto", .change = minimum});
  CHECK(second.epochs == 3);
  CHECK(second.stop_reason == "enough");
}

TEST_CASE("a stop that was requested is made by the resumed run, however the process ended") {
  struct Stopping : Callback {
    enum class End { none, signal, kill } end = End::none;
    void on_train_epoch_end(RunContext& run) override {
      if (run.progress().epoch != 1) return;
      run.request_stop("enough");
      if (end == End::signal) std::raise(SIGTERM);
    }
    void on_train_end(RunContext&) override {
      if (end == End::kill) throw Killed();
    }
  };
  for (const auto end : {Stopping::End::signal, Stopping::End::kill}) {
    CAPTURE(end == Stopping::End::kill);
    const TemporaryFolder folder;
    const auto stopping = std::make_shared<Stopping>();
    stopping->end = end;
    const auto with_stop = [&](TrainerOptions&, TrainerComponents& components) { components.add(stopping); };
    fit(folder, {.change = with_stop});
    CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_0/finished.json"));
    const FitReport second = fit(folder, {.from = "auto"});
    CHECK(second.epochs == 2);
    CHECK(second.stop_reason == "enough");
    CHECK(fs::exists(folder / "fulgur_logs/version_0/finished.json"));
    // A finished run that is asked for more trains on.
    CHECK(fit(folder, {.from = "last"}).epochs == 6);
  }
}

TEST_CASE("hooks and validations that an exception or a signal ends leave nothing in the resumed run") {
  // Counts what a resume repeats, and logs and draws in hooks.
  struct Counting : Callback {
    int64_t starts = 0, ends = 0, validations = 0, validated_batches = 0;
    StateTree state() const override {
      return StateTree::map(
          {{"starts", starts}, {"ends", ends}, {"validations", validations}, {"validated_batches", validated_batches}});
    }
    void load_state(const StateTree& state) override {
      starts = state.at("starts").as_int();
      ends = state.at("ends").as_int();
      validations = state.at("validations").as_int();
      validated_batches = state.at("validated_batches").as_int();
    }
    void on_train_epoch_start(RunContext& run) override {
      ++starts;
      run.log("drawn", at::rand({1}).item<double>(), {.on_epoch = true});
    }
    void on_train_epoch_end(RunContext& run) override {
      ++ends;
      run.log("drawn_at_end", at::rand({1}).item<double>(), {.on_epoch = true});
    }
    void on_validation_batch_end(RunContext&, const Outputs&, const Batch&, int64_t, int64_t) override {
      ++validated_batches;
    }
    void on_validation_end(RunContext&) override { ++validations; }
  };
  struct Throwing : Callback {
    std::string_view place;
    bool by_signal = false;
    explicit Throwing(std::string_view at, bool signal) : place(at), by_signal(signal) {}
    Phase phase() const override { return Phase::checkpoint; }  // after all others have decided
    void at(RunContext& run, std::string_view here) const {
      if (here != place || run.progress().epoch != 2) return;
      if (by_signal)
        std::raise(SIGTERM);
      else
        throw Killed();
    }
    void on_train_epoch_start(RunContext& run) override { at(run, "epoch start"); }
    void on_train_batch_start(RunContext& run, const Batch&, int64_t batch_idx) override {
      if (batch_idx == 0) at(run, "first batch");
    }
    void on_train_epoch_end(RunContext& run) override { at(run, "epoch end"); }
    void on_validation_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t) override {
      at(run, "validation batch");
    }
    void on_validation_end(RunContext& run) override { at(run, "validation end"); }
  };
  struct Dropping : SelfPlanned {
    Dropping() : SelfPlanned(0.3) {}
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      log("noise", at::rand({1}).item<double>(), {.on_step = true});
      return SelfPlanned::training_step(batch, batch_idx);
    }
  };
  ModelCheckpoint::Options saving;
  saving.monitor = "val_loss";
  saving.save_top_k = 2;
  saving.save_on_exception = true;
  const auto with = [](std::shared_ptr<Counting> counting, std::shared_ptr<EarlyStopping> stopping,
                       std::shared_ptr<Throwing> throwing) {
    return [=](TrainerOptions& options, TrainerComponents& components) {
      options.log_every_n_steps = 1;
      components.add(counting);
      components.add(stopping);
      if (throwing) components.add(throwing);
    };
  };
  const auto stopping = [] {
    EarlyStopping::Options options;
    options.monitor = "val_loss";
    options.mode = MonitorMode::max;  // so that it waits
    options.patience = 4;
    return std::make_shared<EarlyStopping>(options);
  };
  const auto module = [] {
    at::manual_seed(3);
    return std::make_shared<Dropping>();
  };
  const TemporaryFolder quiet_folder;
  const auto counted = std::make_shared<Counting>();
  const auto waited = stopping();
  const FitReport whole =
      fit(quiet_folder, {.saving = saving, .change = with(counted, waited, nullptr), .module = module()});
  REQUIRE(waited->wait_count() > 2);
  for (const std::string_view place : {"epoch start", "first batch", "epoch end", "validation batch", "validation end"})
    for (const bool by_signal : {false, true}) {
      if (by_signal && place != "validation batch") continue;
      CAPTURE(place, by_signal);
      const TemporaryFolder folder;
      const auto counting = std::make_shared<Counting>();
      fit(folder, {.saving = saving,
                   .change = with(counting, stopping(), std::make_shared<Throwing>(place, by_signal)),
                   .module = module()});
      const auto again = std::make_shared<Counting>();
      const auto waits = stopping();
      const FitReport report =
          fit(folder, {.from = "auto", .saving = saving, .change = with(again, waits, nullptr), .module = module()});
      CHECK(report.global_step == whole.global_step);
      CHECK(report.stop_reason == whole.stop_reason);
      CHECK(again->state().as_map().size() == 4);
      const StateTree expected = counted->state();
      for (const auto& [key, value] : expected.as_map()) {
        CAPTURE(key);
        CHECK(again->state().at(key).as_int() == value.as_int());
      }
      CHECK(waits->wait_count() == waited->wait_count());
      // In the same order, which tables and further rows follow.
      CHECK(report.metrics == whole.metrics);
      CHECK(read_text(folder / "fulgur_logs/version_0/metrics.csv") ==
            read_text(quiet_folder / "fulgur_logs/version_0/metrics.csv"));
    }
}

TEST_CASE("a validation that follows a batch which fails after its step is made up for") {
  struct Validations : Callback {
    int64_t count = 0;
    StateTree state() const override { return StateTree::map({{"count", count}}); }
    void load_state(const StateTree& state) override { count = state.at("count").as_int(); }
    void on_validation_end(RunContext& run) override { count += run.sanity_checking() ? 0 : 1; }
  };
  struct Failing : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step == 20) throw Killed();  // the last of the second epoch
    }
  };
  ModelCheckpoint::Options saving;
  saving.save_on_exception = true;
  const TemporaryFolder folder;
  const auto with = [](std::shared_ptr<Callback> first, std::shared_ptr<Callback> second) {
    return [=](TrainerOptions&, TrainerComponents& components) {
      components.callbacks.push_back(first);
      if (second) components.callbacks.push_back(second);
    };
  };
  fit(folder, {.saving = saving, .change = with(std::make_shared<Validations>(), std::make_shared<Failing>())});
  const auto validations = std::make_shared<Validations>();
  const FitReport report = fit(folder, {.from = "auto", .saving = saving, .change = with(validations, nullptr)});
  CHECK(report.global_step == 60);
  CHECK(validations->count == 6);
}

TEST_CASE("--resume and last of a version that the logger names are those of that version") {
  const TemporaryFolder folder;
  fit(folder, {.ends_at = 14, .change = as_version(1)});
  fit(folder, {.ends_at = 12, .change = as_version(2)});
  const fs::path root = folder / "fulgur_logs";
  const FitReport second = fit(folder, {.from = "auto", .change = as_version(1)});
  CHECK(second.run_dir.filename() == "version_1");
  CHECK(second.epochs == 2);
  CHECK_FALSE(fs::exists(root / "version_2/finished.json"));
  CHECK(fit(folder, {.from = "auto", .change = as_version(1)}).stop_reason == "finished: max_epochs");
  CHECK(fit(folder, {.from = "auto", .change = as_version(2)}).run_dir.filename() == "version_2");
  CHECK_THAT(message_of<ConfigError>([&] { fit(folder, {.change = as_version(1)}); }),
             ContainsSubstring("version_1") && ContainsSubstring("already exists"));
  // An evaluation reads the version's checkpoint and has a folder of its kind.
  TrainerComponents components;
  components.loggers = {version(1)};
  const auto module = std::make_shared<SelfPlanned>(0.3);
  const EvalReport report = Trainer(quiet(folder), components).test(module, regression_data(40, 8), "last");
  CHECK(report.checkpoint->parent_path().parent_path().filename() == "version_1");
  CHECK(report.run_dir.filename() == "version_3");
}

TEST_CASE("--resume of a version that was killed before its first checkpoint begins again in its folder") {
  const TemporaryFolder folder;
  fit(folder, {.ends_at = 3, .by_signal = false, .change = as_version(1)});
  const fs::path run = folder / "fulgur_logs/version_1";
  CHECK(read_text(run / "metrics.csv").find("\n2,") != std::string::npos);
  std::string told;
  const FitReport report = fit(folder, {.from = "auto", .change = as_version(1)}, &told);
  CHECK_THAT(told, ContainsSubstring("starts from its first step"));
  CHECK(report.run_dir.filename() == "version_1");
  CHECK(report.global_step == 20);
  CHECK(folders_in(folder / "fulgur_logs") == 1);
  // Nothing is left of the rows before.
  const TemporaryFolder quiet_folder;
  fit(quiet_folder, {.change = as_version(1)});
  CHECK(read_text(run / "metrics.csv") == read_text(quiet_folder / "fulgur_logs/version_1/metrics.csv"));
}

TEST_CASE("a run whose checkpoints are in another folder resumes in its own") {
  const TemporaryFolder folder, quiet_folder, elsewhere, quiet_elsewhere;
  const auto saving = [](const TemporaryFolder& where) {
    ModelCheckpoint::Options options;
    options.dirpath = where.path();
    options.every_n_train_steps = 4;
    options.monitor = "train_loss";
    options.save_top_k = 2;
    return options;
  };
  const auto once = [](TrainerOptions& options, TrainerComponents&) { options.max_epochs = 3; };
  const FitReport whole = fit(quiet_folder, {.saving = saving(quiet_elsewhere), .change = once});
  fit(folder, {.ends_at = 17, .by_signal = false, .saving = saving(elsewhere), .change = once});
  const FitReport report = fit(folder, {.from = "auto", .saving = saving(elsewhere), .change = once});
  CHECK(report.run_dir.filename() == "version_0");
  CHECK(folders_in(folder / "fulgur_logs") == 1);
  CHECK(report.global_step == whole.global_step);
  const auto csv = [](const TemporaryFolder& root) { return read_text(root / "fulgur_logs/version_0/metrics.csv"); };
  CHECK(csv(folder) == csv(quiet_folder));
  CHECK(names_in(elsewhere) == names_in(quiet_elsewhere));
}

TEST_CASE("weights in another folder that were saved after the last checkpoint are not duplicated by a resume") {
  const TemporaryFolder folder, quiet_folder, elsewhere, quiet_elsewhere;
  ModelCheckpoint::Options whole;
  whole.every_n_train_steps = 2;
  const auto with_weights_in = [](const TemporaryFolder& where) {
    return [&where](TrainerOptions& options, TrainerComponents& components) {
      options.max_epochs = 1;
      ModelCheckpoint::Options weights;
      weights.dirpath = where.path();
      weights.filename = "{step}";
      weights.every_n_train_steps = 2;
      weights.save_top_k = -1;
      weights.save_weights_only = true;
      components.add(std::make_shared<ModelCheckpoint>(weights));
    };
  };
  fit(quiet_folder, {.saving = whole, .change = with_weights_in(quiet_elsewhere)});
  fit(folder, {.ends_at = 3, .saving = whole, .change = with_weights_in(elsewhere)});
  REQUIRE(fs::exists(elsewhere / "step=4.ckpt"));
  fit(folder, {.from = "auto", .saving = whole, .change = with_weights_in(elsewhere)});
  CHECK(names_in(elsewhere) == names_in(quiet_elsewhere));
}

TEST_CASE("--resume follows the branch of a run that went back, wherever the branch before saved") {
  const TemporaryFolder folder, elsewhere;
  ModelCheckpoint::Options ranking, all;
  ranking.dirpath = elsewhere.path();
  ranking.filename = "b-{epoch}";
  ranking.monitor = "score";
  ranking.mode = MonitorMode::max;
  all.filename = "a-{epoch}";
  all.every_n_epochs = 4;
  all.save_top_k = -1;
  const auto change = [&](TrainerOptions& options, TrainerComponents& components) {
    options.max_epochs = 9;
    options.async_checkpoint = false;
    components.add(std::make_shared<ModelCheckpoint>(all));
  };
  const auto scored = [](std::vector<double> scores) {
    return std::make_shared<Scored>(std::move(scores), /*in_training=*/true);
  };
  // Epoch 5 is the best of the first branch, and stays that.
  const auto fit_scored = [&](const CheckpointChoice& from, int64_t ends_at, std::string* told) {
    return fit(folder,
               {.from = from,
                .ends_at = ends_at,
                .by_signal = false,
                .saving = ranking,
                .change = change,
                .module = scored(from ? std::vector<double>(9, 0) : std::vector<double>{1, 2, 3, 4, 5, 6, 0, 0, 0})},
               told);
  };
  fit_scored({}, 75, nullptr);
  const fs::path checkpoints = folder / "fulgur_logs/version_0/checkpoints";
  REQUIRE(fs::read_symlink(checkpoints / "best.ckpt").filename() == "b-epoch=5.ckpt");
  fit_scored((checkpoints / "a-epoch=3.ckpt").string(), 55, nullptr);
  REQUIRE(fs::read_symlink(checkpoints / "last.ckpt").filename() == "b-epoch=4.ckpt");
  REQUIRE(fs::read_symlink(checkpoints / "best.ckpt").filename() == "b-epoch=5.ckpt");
  std::string told;
  fit_scored("auto", -1, &told);
  CHECK_THAT(told, ContainsSubstring("checkpoint: " + (elsewhere / "b-epoch=4.ckpt").string()));
}

TEST_CASE("the names of links are refused as names of checkpoints before a run begins") {
  for (const char* name : {"last", "best"}) {
    ModelCheckpoint::Options options;
    options.filename = name;
    CHECK_THAT(message_of<ConfigError>([&] { ModelCheckpoint{options}; }),
               ContainsSubstring("is the name of the link"));
    options.dirpath = "elsewhere";
    CHECK_NOTHROW(ModelCheckpoint{options});
  }
}

TEST_CASE("a request for a checkpoint with the name of a link is an error, and the run can be resumed") {
  struct Asking : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step == 12)
        run.request_checkpoint({.name = "last", .reason = "own", .owner = "Asking"});
    }
  };
  const TemporaryFolder folder;
  CHECK_THROWS_AS(fit(folder, {.change = [](auto&, auto& components) { components.add(std::make_shared<Asking>()); }}),
                  ConfigError);
  CHECK(fit(folder, {.from = "auto"}).epochs == 6);
}

TEST_CASE("a run whose final save failed is not finished: --resume repeats what the last checkpoint lacks") {
  // The folder of checkpoints is unwritable from step 15 on.
  struct Blocking : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step != 15) return;
      const fs::path folder = run.checkpoint_dir();
      fs::rename(folder, folder.string() + ".aside");
      write_text(folder, "");
    }
  };
  const TemporaryFolder folder;
  const auto proceeds = [](TrainerOptions& options, TrainerComponents&) {
    options.on_save_error = OnSaveError::proceed;
    options.async_checkpoint = false;
    options.max_epochs = 2;
  };
  std::string told;
  fit(folder,
      {.change =
           [&](TrainerOptions& options, TrainerComponents& components) {
             proceeds(options, components);
             components.add(std::make_shared<Blocking>());
           }},
      &told);
  CHECK_THAT(told, ContainsSubstring("does not count as finished"));
  const fs::path checkpoints = folder / "fulgur_logs/version_0/checkpoints";
  fs::remove(checkpoints);
  fs::rename(checkpoints.string() + ".aside", checkpoints);
  CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_0/finished.json"));
  const FitReport second = fit(folder, {.from = "auto", .change = proceeds});
  CHECK(second.global_step == 20);
  CHECK(second.stop_reason == "max_epochs");
  REQUIRE(second.last_checkpoint);
  CHECK(summarize_checkpoint(*second.last_checkpoint).global_step == 20);
}

TEST_CASE("a save that fails while it is under way does not replace the last one of the fit") {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  ModelCheckpoint::Options saving;
  saving.dirpath = (folder / "file/checkpoints").string();
  saving.every_n_train_steps = 2;
  const auto proceeds = [](TrainerOptions& options, TrainerComponents&) {
    options.on_save_error = OnSaveError::proceed;
    options.max_epochs = 1;
  };
  // The save of step 6 is under way when the signal is acted on.
  const FitReport cut = fit(folder, {.ends_at = 5, .saving = saving, .change = proceeds});
  CHECK(cut.exit_code == ExitCode::preempted);
  REQUIRE(cut.last_checkpoint);
  CHECK(summarize_checkpoint(*cut.last_checkpoint).global_step == 6);
  const FitReport whole = fit(folder, {.from = "auto", .saving = saving, .change = proceeds});
  CHECK(whole.global_step == 10);
  REQUIRE(whole.last_checkpoint);
  CHECK(summarize_checkpoint(*whole.last_checkpoint).global_step == 10);
  CHECK(fs::exists(whole.run_dir / "finished.json"));
}

TEST_CASE("an exception after the optimizer's step loses no row") {
  struct Failing : Callback {
    int64_t at = -1;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step == at) throw Killed();
    }
  };
  const auto run = [](const TemporaryFolder& folder, int64_t at, CheckpointChoice from, int64_t log_every) {
    ModelCheckpoint::Options saving;
    saving.save_on_exception = true;
    saving.every_n_epochs = 100;
    auto failing = std::make_shared<Failing>();
    failing->at = at;
    fit(folder, {.from = from, .saving = saving, .change = [&](TrainerOptions& options, TrainerComponents& components) {
                   options.max_epochs = 2;
                   options.log_every_n_steps = log_every;
                   components.add(failing);
                   components.loggers = {std::make_shared<CsvLogger>()};
                 }});
    return read_text(folder / "fulgur_logs/version_0/metrics.csv");
  };
  for (const int64_t log_every : {1, 3}) {
    CAPTURE(log_every);
    const TemporaryFolder folder, quiet_folder;
    run(folder, 9, {}, log_every);
    CHECK(run(folder, -1, "auto", log_every) == run(quiet_folder, -1, {}, log_every));
  }
}

TEST_CASE("a run that is interrupted again and again leaves no checkpoint for each time") {
  const TemporaryFolder folder, quiet_folder;
  ModelCheckpoint::Options saving;
  saving.monitor = "val_loss";
  for (int64_t i = 0; i < 6; ++i)
    CHECK(fit(folder, {.from = "auto", .ends_at = 3 + 7 * i, .saving = saving}).exit_code == ExitCode::preempted);
  const FitReport report = fit(folder, {.from = "auto", .saving = saving});
  fit(quiet_folder, {.saving = saving});
  const auto names = [](const TemporaryFolder& root) {
    std::set<std::string> all;
    for (const auto& summary : list_checkpoints(root / "fulgur_logs/version_0/checkpoints"))
      all.insert(summary.path.filename().string());
    return all;
  };
  CHECK(report.epochs == 6);
  CHECK(names(folder) == names(quiet_folder));
}

TEST_CASE(
    "a checkpoint whose path the user gave stays, in this run and in those that resume it; last and links do not") {
  ModelCheckpoint::Options saving;
  saving.monitor = "val_loss";
  const TemporaryFolder folder;
  const fs::path checkpoints = folder / "fulgur_logs/version_0/checkpoints";
  const auto newest = [&] { return *link_target(checkpoints / "last.ckpt"); };
  const auto ended_at = [&](int64_t batch, const CheckpointChoice& from) {
    CHECK(fit(folder, {.from = from, .ends_at = batch, .saving = saving}).exit_code == ExitCode::preempted);
    return newest();
  };
  const fs::path first = ended_at(3, {}), second = ended_at(10, (checkpoints / "last.ckpt").string()),
                 third = ended_at(17, second.string()), fourth = ended_at(24, "last");
  CHECK_FALSE(fs::exists(first));
  CHECK(fit(folder, {.from = "auto", .saving = saving}).epochs == 6);
  CHECK(fs::exists(second));
  CHECK_FALSE(fs::exists(third));
  CHECK_FALSE(fs::exists(fourth));
}

TEST_CASE("loaders are created at a resume as they were for the run that was interrupted") {
  // Each epoch's data is another one, by the epoch in which the loader is created.
  struct Changing : SelfPlanned {
    Changing() : SelfPlanned(0.0) {}
    Loaders train_dataloader() override {
      created.push_back(run().progress().epoch);
      DataLoaderOptions options;
      options.batch_size = 4;
      options.shuffle = true;
      return {std::make_shared<DataLoader>(
          std::make_shared<TensorDataset>(regression(40, 1 + static_cast<uint64_t>(created.back()))), options)};
    }
    std::vector<int64_t> created;
  };
  const auto run = [](const TemporaryFolder& folder, int64_t every, int64_t ends_at, CheckpointChoice from) {
    TrainerOptions options = quiet(folder);
    options.max_epochs = 5;
    options.reload_dataloaders_every_n_epochs = every;
    TrainerComponents components;
    components.seed = 5;
    auto ending = std::make_shared<Ending>();
    ending->at_batch = ends_at;
    components.add(ending);
    at::manual_seed(3);
    auto module = std::make_shared<Changing>();
    Trainer(options, components).fit(module, {}, from);
    return module;
  };
  for (const int64_t every : {0, 1, 2}) {
    CAPTURE(every);
    for (const int64_t ends_at : {5, 25, 30, 35}) {
      CAPTURE(ends_at);
      const TemporaryFolder folder, quiet_folder;
      const auto whole = run(quiet_folder, every, -1, {});
      run(folder, every, ends_at, {});
      const auto rest = run(folder, every, -1, "auto");
      CHECK(same_weights(weights(*whole), weights(*rest)));
    }
  }
}

TEST_CASE("a checkpoint that an exception causes is of the state before the batch, whatever of the step was done") {
  enum Place { nowhere, in_forward, after_log, after_backward, before_step };
  struct Failing : SelfPlanned {
    Failing(Place failure, int64_t batch) : SelfPlanned(0.3), place(failure), fails_at(batch) {
      norm = register_module("norm", torch::nn::BatchNorm1d(2));
    }
    Place place;
    int64_t fails_at, batches = 0;
    torch::nn::BatchNorm1d norm{nullptr};
    void fail_at(Place here) const {
      if (here == place && batches == fails_at) throw std::runtime_error("broken on purpose");
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      ++batches;
      const Tensor loss = at::mse_loss(norm->forward(SelfPlanned::forward(batch[0])), batch[1]);
      fail_at(in_forward);
      log("loss", loss, {.on_step = true, .on_epoch = true});
      log("sum", loss, {.on_step = false, .on_epoch = true, .reduce_fx = Reduce::sum});
      fail_at(after_log);
      return loss;
    }
    void on_after_backward() override { fail_at(after_backward); }
    void on_before_optimizer_step(Optimizer&) override { fail_at(before_step); }
  };
  const auto run = [](const TemporaryFolder& folder, Place place, int64_t batch, CheckpointChoice from) {
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    options.accumulate_grad_batches = 3;
    options.log_every_n_steps = 2;
    ModelCheckpoint::Options saving;
    saving.save_on_exception = true;
    saving.every_n_epochs = 100;
    TrainerComponents components;
    components.seed = 5;
    components.add(std::make_shared<ModelCheckpoint>(saving));
    components.loggers = {std::make_shared<CsvLogger>()};
    at::manual_seed(3);
    auto module = std::make_shared<Failing>(place, batch);
    try {
      Trainer(options, components).fit(module, regression_data(40, 0), from);
    } catch (const std::runtime_error&) {
    }
    return weights(*module);
  };
  const TemporaryFolder quiet_folder;
  const auto whole = run(quiet_folder, nowhere, 0, {});
  const auto rows = [](const TemporaryFolder& folder) {
    return read_text(folder / "fulgur_logs/version_0/metrics.csv");
  };
  for (const Place place : {in_forward, after_log, after_backward, before_step})
    for (const int64_t batch : {5, 6, 10, 12, 15}) {
      if (place == before_step && batch % 3 != 0 && batch != 10) continue;
      CAPTURE(place, batch);
      const TemporaryFolder folder;
      run(folder, place, batch, {});
      CHECK(same_weights(run(folder, nowhere, 0, "auto"), whole));
      CHECK(rows(folder) == rows(quiet_folder));
    }
}

}  // namespace interrupted_combinations_test
