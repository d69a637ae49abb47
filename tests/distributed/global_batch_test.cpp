// trainer.global_batch_size: ranks come and go, and a step has the same samples.
#include "ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace global_batch_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kBatch = 4;  // of a rank

// 96 samples in steps of 16: six steps are an epoch.
const Arguments kOptions{"--data.num_train", "96",   "--trainer.global_batch_size", "16", "--optimizer", "AdamW",
                         "--optimizer.lr",   "0.01", "--trainer.log_every_n_steps", "1"};

std::vector<Finished> fit(const fs::path& folder, int world, const Arguments& more) {
  if (world == 1)
    return {
        trainer(probe("fit", 1, kBatch, kOptions + more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
  return run_ranks({.count = world, .folder = folder}, probe("fit", world, kBatch * world, kOptions + more));
}

std::map<int64_t, double> losses_in(const fs::path& folder) {
  std::map<int64_t, double> losses;
  std::ifstream file(run_folder(folder) / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("loss_step")) losses[row.at("step").get<int64_t>()] = row.at("loss_step").get<double>();
  }
  return losses;
}

void check_same_losses(const std::map<int64_t, double>& expected, const std::map<int64_t, double>& losses) {
  REQUIRE(losses.size() == expected.size());
  for (const auto& [step, loss] : expected) {
    CAPTURE(step);
    REQUIRE(losses.contains(step));
    CHECK(std::abs(losses.at(step) - loss) < 1e-5);
  }
}

}  // namespace

TEST_CASE("global_batch_size: four ranks, of which two and then one are left, train like four that stay") {
  const TemporaryFolder whole, parts;
  const auto steps = [](const char* count) { return Arguments{"--trainer.max_steps", count}; };
  REQUIRE(all_exit(fit(whole.path(), 4, steps("24")), 0));
  fs::create_directories(parts / "seen");
  const Arguments noting{"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.seen", (parts / "seen").string()};
  REQUIRE(all_exit(fit(parts.path(), 4, steps("5") + noting), 0));
  const auto two = fit(parts.path(), 2, steps("14") + noting + Arguments{"--resume"});
  REQUIRE(all_exit(two, 0));
  CHECK(says(two[0].err, "global batch: 16 samples, in 2 batches of 4 on 2 ranks"));
  CHECK_FALSE(says(two[0].err, "trains differently"));
  REQUIRE(all_exit(fit(parts.path(), 1, steps("24") + noting + Arguments{"--resume"}), 0));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(parts.path())) < 1e-5);
  check_same_losses(losses_in(whole.path()), losses_in(parts.path()));
  // Four epochs: each sample as often, whichever rank had it.
  std::map<std::string, int64_t> seen;
  for (const auto& entry : fs::directory_iterator(parts / "seen")) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) ++seen[line];
  }
  CHECK(seen.size() == 96);
  for (const auto& [sample, times] : seen) CHECK(times == 4);
}

TEST_CASE("global_batch_size: ranks that are killed resume with half as many, and train like an undisturbed run") {
  const TemporaryFolder whole, parts;
  const Arguments saving{"--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "2"};
  const Arguments steps = Arguments{"--trainer.max_steps", "18"} + saving;
  REQUIRE(all_exit(fit(whole.path(), 4, steps), 0));
  const Finished killed = trainer(
      probe("fit", 4, kBatch * 4, kOptions + steps + Arguments{"--model.trouble", "kill", "--model.trouble_step", "7"}),
      {.folder = parts.path(), .environment = {"OMP_NUM_THREADS=1"}});
  REQUIRE(killed.exit_code == 5);
  const auto rest = fit(parts.path(), 2, steps + Arguments{"--resume", "--allow-config-change"});
  REQUIRE(all_exit(rest, 0));
  CHECK(says(rest[0].err, "epoch=0-step=6.ckpt"));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(parts.path())) < 1e-5);
  check_same_losses(losses_in(whole.path()), losses_in(parts.path()));
}

TEST_CASE("global_batch_size: a signal waits for the end of the step, from which any number of ranks resumes") {
  const TemporaryFolder whole, parts;
  const Arguments steps{"--trainer.max_steps", "12", "--trainer.agree_every", "1"};
  REQUIRE(all_exit(fit(whole.path(), 1, steps), 0));
  const auto cut =
      fit(parts.path(), 1,
          steps + Arguments{"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank", "0",
                            "--trainer.callbacks.signal_step", "4", "--trainer.callbacks.signal_place", "batch_start"});
  REQUIRE(all_exit(cut, 75));
  const auto state = nlohmann::json::parse(read_text(last_checkpoint(parts.path()) / "state.json"));
  INFO(state.dump());
  CHECK(says(state.dump(), "\"window_done\":0"));
  REQUIRE(all_exit(fit(parts.path(), GENERATE(2, 4), steps + Arguments{"--resume"}), 0));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(parts.path())) < 1e-5);
}

TEST_CASE("global_batch_size: a checkpoint from inside a step continues with ranks whose batches end there") {
  const TemporaryFolder whole, parts;
  // A validation follows each batch; a signal in it saves after eight of the sixteen samples of a step.
  const Arguments options{"--trainer.max_steps", "12", "--trainer.val_check_interval", "1"};
  REQUIRE(all_exit(fit(whole.path(), 2, options), 0));
  const auto cut = fit(
      parts.path(), 2,
      options + Arguments{"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank", "0",
                          "--trainer.callbacks.signal_step", "4", "--trainer.callbacks.signal_place", "batch_start"});
  REQUIRE(all_exit(cut, 75));
  const auto four = fit(parts.path(), 4, options + Arguments{"--resume"});
  for (const Finished& rank : four) CHECK(rank.exit_code != 0);
  CHECK(says(four[0].err, "inside a step, after 8 of 16 samples, where batches of 16 samples (4 on 4 ranks)"));
  REQUIRE(all_exit(fit(parts.path(), 1, options + Arguments{"--resume"}), 0));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(parts.path())) < 1e-5);
}

TEST_CASE("global_batch_size: what cannot be is refused, with what can") {
  const TemporaryFolder folder;
  const auto refused = [&](int world, const Arguments& more) {
    const auto runs = fit(folder.path(), world, more);
    CHECK(all_exit(runs, 2));
    return runs[0].err;
  };
  const std::string uneven = refused(2, {"--trainer.global_batch_size", "20"});
  INFO(uneven);
  CHECK(says(uneven, "must be a multiple of batch_size × ranks, which is 4 × 2 = 8; got 20"));
  CHECK(says(uneven, "Set it to 16 or 24, or batch_size to 2."));
  CHECK(says(refused(3, {}), "Set it to 12 or 24, or use a number of ranks that divides it."));
  CHECK(says(refused(1, {"--trainer.accumulate_grad_batches", "2"}), "and so does accumulate_grad_batches"));
  CHECK(says(refused(1, {"--trainer.callbacks+=GradientAccumulationScheduler", "--trainer.callbacks.scheduling",
                         "{0: 1, 2: 2}"}),
             "so does a callback"));
}

}  // namespace global_batch_test
