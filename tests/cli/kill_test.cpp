// A run that is killed again and again, and continues with --resume, ends with the bytes of one that was not.
// FULGUR_TEST_KILLS sets how often it is killed; the moments come from Catch's seed, so --rng-seed N repeats them as
// far as the machine allows.
#include "fulgur/checkpoint/checkpoint_folder.h"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <random>

#include "killed_runs.h"
#include "process.h"

namespace kill_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 7
trainer:
  max_epochs: 6
  num_threads: 1
  deterministic: true
  log_every_n_steps: 1
  enable_progress_bar: false
  enable_model_summary: false
  logger: [CsvLogger, JsonlLogger]
model: {class_path: MlpClassifier, init_args: {in_features: 16, num_classes: 4, hidden: [32], dropout: 0.2}}
data:
  class_path: SyntheticDataModule
  init_args: {num_train: 1000, num_val: 64, num_test: 64, num_classes: 4, shape: [16], batch_size: 8, num_workers: 0}
optimizer: {class_path: AdamW, init_args: {lr: 0.01}}
lr_scheduler: {class_path: CosineAnnealingLR}
lr_scheduler_interval: step
)";

// Whenever a process died: what bears the name of a checkpoint is one.
void check_checkpoints(const fs::path& checkpoints) {
  if (!fs::exists(checkpoints)) return;
  for (const auto& summary : fulgur::list_checkpoints(checkpoints)) {
    INFO(summary.path);
    CHECK(fulgur::verify_checkpoint(summary.path).ok());
  }
  if (fs::is_symlink(checkpoints / "last.ckpt")) CHECK(fs::exists(checkpoints / "last.ckpt/manifest.json"));
}

void compare_with_killed(int kills, const std::vector<std::string>& overrides) {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto arguments = [&](const std::string& root) {
    std::vector<std::string> all{
        "fit", "-c", (folder / "c.yaml").string(), "--resume", "--trainer.default_root_dir", (folder / root).string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return all;
  };
  const Finished whole = trainer(arguments("whole"));
  INFO(whole.err);
  REQUIRE(whole.exit_code == 0);
  const fs::path last = fs::read_symlink(newest_run(folder / "whole") / "checkpoints/last.ckpt");
  REQUIRE(last.is_relative());

  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  int done = 0;
  for (int round = 0; done < kills; ++round) {
    REQUIRE(round < kills);  // else nothing was killed in a whole round
    const std::string root = "killed" + std::to_string(round);
    CAPTURE(root, done);
    for (bool finished = false; !finished;) {
      Running run(arguments(root));
      if (done < kills && run.wait_until([&] { return says(run.err(), "run folder: "); })) {
        ::usleep(static_cast<useconds_t>(std::uniform_int_distribution(0, 250000)(random)));
        if (!run.has_ended()) {
          run.signal(SIGKILL);
          ++done;
        }
      }
      const Finished end = run.wait();
      INFO(end.err);
      REQUIRE((end.exit_code == 0 || end.exit_code == 128 + SIGKILL));
      CHECK_FALSE(says(end.err, "cannot be used"));
      finished = end.exit_code == 0;
      check_checkpoints(newest_run(folder / root) / "checkpoints");
    }
    compare_runs(newest_run(folder / "whole"), newest_run(folder / root), last);
  }
}

}  // namespace

TEST_CASE("F1 killed while checkpoints are written, a run continues as if nothing had happened") {
  compare_with_killed(kills(20),
                      {"--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "5"});
}

TEST_CASE(
    "F3 killed in mid-epoch, with workers, dropout and accumulation, a run continues as if nothing had happened") {
  compare_with_killed(kills(50),
                      {"--trainer.accumulate_grad_batches", "3", "--data.num_workers", "2", "--data.num_train", "4000",
                       "--trainer.max_epochs", "3", "--trainer.callbacks+=ModelCheckpoint",
                       "--trainer.callbacks.every_n_train_steps", "17"});
}

}  // namespace kill_test
