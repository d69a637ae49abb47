// Runs that save in the same folder (ModelCheckpoint.dirpath) remove only their own checkpoints.
#include "callbacks/scored.h"
#include "trainer/checkpointing/interrupted.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <set>

#include "fulgur/callbacks/model_checkpoint.h"

namespace other_runs_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

Names names_in(const TemporaryFolder& folder) {
  Names names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.insert(entry.path().filename().string());
  return names;
}

/// A run that keeps its two highest scores in `shared`.
FitReport fit(const TemporaryFolder& root, const TemporaryFolder& shared, const std::vector<double>& scores,
              int64_t max_epochs, const CheckpointChoice& from = {}) {
  ModelCheckpoint::Options saving;
  saving.dirpath = shared.path();
  saving.filename = "b-{epoch}";
  saving.monitor = "score";
  saving.mode = MonitorMode::max;
  saving.save_top_k = 2;
  return interrupted::fit(root, {.from = from,
                                 .saving = saving,
                                 .change = [=](TrainerOptions& options, auto&) { options.max_epochs = max_epochs; },
                                 .module = std::make_shared<Scored>(scores, /*in_training=*/true)});
}

/// The names that are in the folder after the runs besides all of those before.
Names added_to(const Names& before, const TemporaryFolder& shared) {
  Names after = names_in(shared);
  for (const std::string& name : before) {
    INFO(name);
    CHECK(after.erase(name) == 1);
  }
  return after;
}

/// Scores of epochs: of the first three, the first or the last is the best; those after them are worse.
std::vector<double> some_scores() {
  return GENERATE(std::vector<double>{3, 2, 1, 0.5, 0.7}, std::vector<double>{1, 2, 3, 0.5, 0.7});
}

}  // namespace

TEST_CASE("a run that begins from a checkpoint of another run ranks afresh, and removes none of the other's") {
  const TemporaryFolder base, other, shared;
  const std::vector<double> scores = some_scores();
  const FitReport first = fit(base, shared, scores, 3);
  const Names before = names_in(shared);
  // The base may be gone, and its checkpoints kept.
  if (GENERATE(false, true)) fs::remove_all(base / "fulgur_logs");
  const FitReport second = fit(other, shared, scores, 5, first.last_checkpoint->string());
  CHECK(second.run_dir == other / "fulgur_logs/version_0");
  CHECK(added_to(before, shared) == Names{"b-epoch=3.ckpt", "b-epoch=4.ckpt"});
  REQUIRE(second.best_checkpoint);
  CHECK(second.best_checkpoint->filename() == "b-epoch=4.ckpt");
}

TEST_CASE("a copy of a run folder is another run, and each removes only its own checkpoints") {
  const TemporaryFolder base, copy, shared;
  const std::vector<double> scores = some_scores();
  const FitReport first = fit(base, shared, scores, 3);
  const Names before = names_in(shared);
  fs::copy(base / "fulgur_logs", copy / "fulgur_logs", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const FitReport second = fit(copy, shared, scores, 5, "auto");
  CHECK(second.run_dir == copy / "fulgur_logs/version_0");
  CHECK(second.epochs == 5);
  CHECK(added_to(before, shared) == Names{"b-epoch=3.ckpt", "b-epoch=4.ckpt"});
  REQUIRE(second.best_checkpoint);
  CHECK(second.best_checkpoint->filename() == "b-epoch=4.ckpt");
  const FitReport third = fit(base, shared, scores, 5, "auto");
  CHECK(third.run_dir == base / "fulgur_logs/version_0");
  CHECK(third.best_checkpoint == first.best_checkpoint);
  CHECK(third.last_checkpoint->filename() == "b-epoch=4-v1.ckpt");
  for (const FitReport& report : {second, third}) {
    CHECK(fs::exists(report.run_dir / "checkpoints/best.ckpt/state.json"));
    CHECK(fs::exists(report.run_dir / "checkpoints/last.ckpt/state.json"));
  }
  CHECK_FALSE(names_in(shared).contains("b-epoch=3-v1.ckpt"));
}

TEST_CASE("a run whose folder was moved still removes its checkpoints in other folders") {
  const TemporaryFolder base, moved, shared;
  const std::vector<double> scores{3, 2, 1, 4, 5};
  fit(base, shared, scores, 3);
  fs::rename(base / "fulgur_logs", moved / "fulgur_logs");
  const FitReport second = fit(moved, shared, scores, 5, "auto");
  CHECK(second.run_dir == moved / "fulgur_logs/version_0");
  CHECK(names_in(shared) == Names{"b-epoch=3.ckpt", "b-epoch=4.ckpt"});
}

}  // namespace other_runs_test
