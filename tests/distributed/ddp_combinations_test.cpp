// What several ranks do in combinations: windows, streams, limits, resumes over another number of ranks, closures. The
// rule is always that N ranks do what one does with the batches of all.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ranks.h"

namespace ddp_combinations_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

using Arguments = std::vector<std::string>;

std::vector<Finished> fit(const fs::path& folder, int world, int64_t batch_size_of_all, Arguments more) {
  if (world == 1)
    return {
        trainer(probe("fit", 1, batch_size_of_all, more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
  more.insert(more.end(), {"--trainer.strategy.check_replicas_every", "1"});
  return run_ranks({.count = world, .folder = folder}, probe("fit", world, batch_size_of_all, more));
}

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// How often each sample of each loader was trained on, by what the ranks have noted.
std::map<std::string, int64_t> seen_in(const fs::path& folder) {
  std::map<std::string, int64_t> seen;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) ++seen[line];
  }
  return seen;
}

Arguments noting(const fs::path& folder) {
  fs::create_directories(folder);
  return {"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.seen", folder.string()};
}

}  // namespace

TEST_CASE("ddp: a window that ends early exchanges its gradients, and two ranks are one") {
  const TemporaryFolder one, two;
  // Five batches in windows of three.
  const Arguments options{"--trainer.max_epochs", "3",    "--trainer.accumulate_grad_batches", "3",
                          "--data.shuffle",       "false"};
  const auto check_equal = [&](const Arguments& alone, const Arguments& shared) {
    REQUIRE(all_exit(fit(one.path(), 1, 8, options + alone), 0));
    REQUIRE(all_exit(fit(two.path(), 2, 8, options + shared), 0));
    CHECK(difference(last_checkpoint(one.path()), last_checkpoint(two.path())) < 1e-6);
  };
  SECTION("at the end of a stream") { check_equal({"--data.stream", "[40]"}, {"--data.stream", "[20,20]"}); }
  SECTION("at the end of a stream under a limit that it does not reach") {
    check_equal({"--data.stream", "[40]", "--trainer.limit_train_batches", "100"},
                {"--data.stream", "[20,20]", "--trainer.limit_train_batches", "100"});
  }
  SECTION("if the epoch is skipped") {
    const Arguments skipped{"--model.trouble", "skip_epoch", "--model.trouble_step", "5"};
    check_equal(skipped, skipped);
  }
  SECTION("with float32 copies of the weights") {
    // bfloat16 rounds sums of another order otherwise: the ranks' weights are compared with each other.
    const Arguments masters{"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true",
                            "--data.stream",       "[20,20]"};
    REQUIRE(all_exit(fit(two.path(), 2, 8, options + masters), 0));
  }
}

TEST_CASE("ddp: a stream that ended before a stop in the validation is continued by another number of ranks") {
  const TemporaryFolder folder;
  const auto fit = [&](int world, std::vector<std::string> more) {
    more.insert(more.begin(), {"--trainer.max_epochs", "2", "--data.stream", world == 1 ? "[40]" : "[20,20]"});
    return run_ranks({.count = world, .folder = folder.path()}, probe("fit", world, 8, more));
  };
  const auto stopped =
      fit(2, {"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank", "0",
              "--trainer.callbacks.signal_place", "validation_batch", "--trainer.callbacks.signal_step", "5"});
  CHECK(all_exit(stopped, 75));
  const auto resumed = fit(1, {"--resume"});
  CHECK(all_exit(resumed, 0));
  INFO(resumed[0].err);
  // The second epoch has all 40 samples, in batches of 4 as before.
  CHECK(says(resumed[0].err, "2 epochs, 15 steps"));
}

TEST_CASE("ddp: streams of different lengths end together under a limit of batches") {
  const TemporaryFolder folder;
  const auto runs =
      fit(folder.path(), 2, 16,
          {"--trainer.max_epochs", "2", "--data.stream", "[32,20]", "--trainer.limit_train_batches", "100"});
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "2 epochs, 6 steps"));
}

TEST_CASE("ddp: an optimizer that evaluates the loss several times decides by the loss of all ranks") {
  const TemporaryFolder one, two;
  const Arguments options{"--trainer.max_steps",  "6", "--optimizer",         "LBFGS",  "--optimizer.lr", "1",
                          "--optimizer.max_iter", "5", "--trainer.precision", "64-true"};
  const Arguments searched = options + GENERATE(Arguments{}, Arguments{"--optimizer.line_search_fn", "strong_wolfe"});
  REQUIRE(all_exit(fit(one.path(), 1, 16, searched), 0));
  REQUIRE(all_exit(fit(two.path(), 2, 16, searched), 0));
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(two.path())) < 1e-8);
}

TEST_CASE(
    "ddp: resumed over another number of ranks with the batch size of a rank, each sample of the epoch is seen once") {
  const auto [from, to] = GENERATE(std::pair{1, 2}, std::pair{2, 1}, std::pair{2, 3}, std::pair{3, 2}, std::pair{1, 4});
  const auto [train, stop_at] =
      GENERATE(std::pair{int64_t{96}, "1"}, std::pair{int64_t{96}, "3"}, std::pair{int64_t{101}, "3"});
  CAPTURE(from, to, train, stop_at);
  const TemporaryFolder folder;
  const Arguments options = Arguments{"--data.num_train",
                                      std::to_string(train),
                                      "--trainer.max_epochs",
                                      "1",
                                      "--trainer.accumulate_grad_batches",
                                      "2"} +
                            noting(folder / "seen");
  constexpr int64_t kBatch = 4;  // of a rank
  REQUIRE(all_exit(fit(folder.path(), from, kBatch * from, options + Arguments{"--trainer.max_steps", stop_at}), 0));
  const auto runs = fit(folder.path(), to, kBatch * to, options + Arguments{"--resume"});
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "1 epoch,"));
  CHECK(says(runs[0].err, "the global batch has " + std::to_string(kBatch * to) + " samples instead of " +
                              std::to_string(kBatch * from)));
  // The epoch was validated at its end.
  CHECK(read_text(run_folder(folder.path()) / "metrics.jsonl").find("val_loss") != std::string::npos);
  const auto seen = seen_in(folder / "seen");
  CHECK(static_cast<int64_t>(seen.size()) == train);
  // Shares are filled up to the same length: some samples may come twice.
  int64_t surplus = 0;
  for (const auto& [sample, times] : seen) surplus += times - 1;
  CHECK(surplus <= (train % from == 0 ? 0 : from - 1) + to - 1);
}

TEST_CASE("ddp: resumed over other ranks with a step of as many samples, the global batch is the same") {
  const TemporaryFolder folder;
  const auto resumed = [&](int world, const char* accumulated, const Arguments& more) {
    return fit(folder.path(), world, 4 * world,
               Arguments{"--data.num_train", "96", "--trainer.accumulate_grad_batches", accumulated} + more);
  };
  REQUIRE(all_exit(resumed(1, "2", {"--trainer.max_steps", "2"}), 0));
  const auto runs = resumed(2, "1", {"--trainer.max_steps", "4", "--resume", "--allow-config-change"});
  REQUIRE(all_exit(runs, 0));
  CHECK_FALSE(says(runs[0].err, "the global batch has"));
}

TEST_CASE("ddp: resumed over another number of ranks, combined loaders share out what each has left") {
  const auto [from, to] = GENERATE(std::pair{1, 2}, std::pair{2, 1});
  const TemporaryFolder folder;
  const Arguments options =
      Arguments{"--data.num_train", "96", "--data.second", "40", "--trainer.max_epochs", "1"} + noting(folder / "seen");
  REQUIRE(all_exit(fit(folder.path(), from, 4 * from, options + Arguments{"--trainer.max_steps", "4"}), 0));
  REQUIRE(all_exit(fit(folder.path(), to, 4 * to, options + Arguments{"--resume"}), 0));
  const auto seen = seen_in(folder / "seen");
  int64_t first = 0, second = 0;
  for (const auto& [sample, times] : seen) {
    CAPTURE(sample);
    const bool of_first = sample.starts_with("0 ");
    ++(of_first ? first : second);
    // The shorter one begins again until the longer one ends.
    CHECK((of_first ? times == 1 : times >= 2));
  }
  CHECK(first == 96);
  CHECK(second == 40);
}

TEST_CASE("ddp: a process makes several runs after each other") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path(), .program = FULGUR_SEVERAL_RUNS}, {});
  REQUIRE(all_exit(runs, 0));
  for (const Finished& rank : runs) CHECK(rank.out == "4 16 4\n");
}

TEST_CASE("ddp: intervals in samples count those of all ranks, and all ranks decide the same") {
  // Ranks read 8 and 4 samples in the last batch of an epoch.
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2, 16,
                        {"--trainer.max_epochs", "4", "--data.stream", "[24,20]", "--trainer.val_check_interval",
                         "40sa", "--trainer.check_val_every_n_epoch", "null", "--trainer.callbacks+=ModelCheckpoint",
                         "--trainer.callbacks.every", "60sa", "--trainer.callbacks.save_top_k", "-1"});
  REQUIRE(all_exit(runs, 0));
  // 44 samples an epoch, in batches of 16, 16 and 12.
  std::set<int64_t> validated;
  std::istringstream rows(read_text(run_folder(folder.path()) / "metrics.jsonl"));
  for (std::string row; std::getline(rows, row);) {
    const auto json = nlohmann::json::parse(row);
    if (json.contains("val_loss")) validated.insert(json.at("step").get<int64_t>());
  }
  CHECK(validated == std::set<int64_t>{3, 6, 8, 11});
  std::set<std::string> saved;
  for (const auto& entry : fs::directory_iterator(run_folder(folder.path()) / "checkpoints"))
    if (!entry.is_symlink()) saved.insert(entry.path().filename().string());
  for (const char* name : {"epoch=1-step=4.ckpt", "epoch=2-step=8.ckpt"}) {
    CAPTURE(name);
    CHECK(saved.contains(name));
  }
}

TEST_CASE("ddp: a value of an epoch hook weighs the same on all ranks, whatever their last batches") {
  // Rank 0 has batches of 8, 8 and 1 sample, rank 1 of 8 and 8.
  const TemporaryFolder folder;
  REQUIRE(all_exit(
      fit(folder.path(), 2, 16, {"--trainer.max_epochs", "1", "--data.num_eval", "33", "--model.logs_rank", "true"}),
      0));
  std::istringstream rows(read_text(run_folder(folder.path()) / "metrics.jsonl"));
  double mean = -1;
  for (std::string row; std::getline(rows, row);) {
    const auto json = nlohmann::json::parse(row);
    if (json.contains("rank_of_epoch")) mean = json.at("rank_of_epoch").get<double>();
  }
  CHECK(mean == 0.5);
}

}  // namespace ddp_combinations_test
