// Decisions by metrics, and schedules, over several ranks are those of one process.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "ranks.h"

namespace ddp_monitors_test {

using namespace fulgur::test;
using Catch::Matchers::WithinRel;
namespace fs = std::filesystem;

namespace {

using Arguments = std::vector<std::string>;

std::vector<Finished> fit(const fs::path& folder, int world, int64_t batch_size_of_all, const Arguments& more) {
  if (world == 1)
    return {
        trainer(probe("fit", 1, batch_size_of_all, more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
  return run_ranks({.count = world, .folder = folder}, probe("fit", world, batch_size_of_all, more));
}

std::map<int64_t, double> values(const fs::path& folder, const char* name) {
  std::map<int64_t, double> by_step;
  std::istringstream rows(read_text(run_folder(folder) / "metrics.jsonl"));
  for (std::string line; std::getline(rows, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains(name)) by_step[row["step"]] = row[name];
  }
  return by_step;
}

}  // namespace

TEST_CASE("ddp: a monitored step metric does not depend on the rows that were written") {
  // own_rank is logged without sync_dist: rank 0's, 0 in each step. It never improves, so training stops.
  const std::string log_every = GENERATE("1", "1000");
  const std::string monitor = GENERATE("own_rank", "rank_of_all");
  const TemporaryFolder folder;
  const auto runs =
      fit(folder.path(), 2, 8,
          {"--trainer.max_epochs", "9", "--trainer.log_every_n_steps", log_every, "--trainer.callbacks+=EarlyStopping",
           "--trainer.callbacks.monitor", monitor, "--trainer.callbacks.patience", "3",
           "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor", monitor,
           "--trainer.callbacks.save_top_k", "-1", "--trainer.callbacks.filename", "'{epoch}-{" + monitor + "}'"});
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "did not improve in the last 3 checks"));
  const std::string value = monitor == "own_rank" ? "0" : "0.5";
  for (const char* epoch : {"0", "1", "2", "3"})
    CHECK(fs::exists(run_folder(folder.path()) / "checkpoints" /
                     ("epoch=" + std::string(epoch) + "-" + monitor + "=" + value + ".ckpt")));
}

TEST_CASE("ddp: resumed over other ranks, a schedule follows the samples that are done") {
  const Arguments schedule{"--data.num_train",
                           "64",
                           "--trainer.max_epochs",
                           "4",
                           "--trainer.log_every_n_steps",
                           "1",
                           "--trainer.callbacks+=LearningRateMonitor",
                           "--lr_scheduler",
                           "CosineAnnealingLR",
                           "--lr_scheduler_interval",
                           "step"};
  const TemporaryFolder whole, parts;
  REQUIRE(all_exit(fit(whole.path(), 1, 4, schedule), 0));
  Arguments first = schedule, second = schedule;
  first.insert(first.end(), {"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank", "0",
                             "--trainer.callbacks.signal_step", "20"});
  second.emplace_back("--resume");
  REQUIRE(all_exit(fit(parts.path(), 1, 4, first), 75));
  REQUIRE(all_exit(fit(parts.path(), 2, 8, second), 0));
  const auto expected = values(whole.path(), "lr-SGD"), got = values(parts.path(), "lr-SGD");
  REQUIRE(expected.size() == 64);
  const int64_t at = got.rbegin()->first == 42 ? 20 : 21;  // the steps before the signal was seen
  for (const auto& [step, rate] : got) {
    CAPTURE(step, at);
    const int64_t there = step <= at ? step : at + 1 + 2 * (step - at - 1);
    REQUIRE(expected.contains(there));
    CHECK_THAT(rate, WithinRel(expected.at(there), 1e-9));
  }
}

TEST_CASE("ddp: static_graph with accumulated gradients gives the weights of a graph that is looked at each time") {
  const TemporaryFolder plain, still;
  const Arguments options{"--trainer.accumulate_grad_batches", GENERATE("2", "3"), "--trainer.max_steps", "6"};
  Arguments with = options;
  with.insert(with.end(), {"--trainer.strategy.static_graph", "true"});
  REQUIRE(all_exit(fit(plain.path(), 2, 8, options), 0));
  REQUIRE(all_exit(fit(still.path(), 2, 8, with), 0));
  CHECK(difference(last_checkpoint(plain.path()), last_checkpoint(still.path())) < 1e-6);
}

TEST_CASE("ddp: GradientMonitor sees the gradients after the exchange, so those of one process with all samples") {
  const TemporaryFolder one, two;
  const Arguments monitor{
      "--trainer.max_epochs",      "1",  "--trainer.log_every_n_steps", "1", "--trainer.callbacks+=GradientMonitor",
      "--trainer.callbacks.every", "1st"};
  REQUIRE(all_exit(fit(one.path(), 1, 8, monitor), 0));
  REQUIRE(all_exit(fit(two.path(), 2, 8, monitor), 0));
  for (const char* name :
       {"grad_2.0_norm/first", "grad_2.0_norm_total", "weight_2.0_norm_total", "update_ratio_total"}) {
    const auto expected = values(one.path(), name), got = values(two.path(), name);
    CAPTURE(name);
    REQUIRE(expected.size() >= 2);
    REQUIRE(got.size() == expected.size());
    for (const auto& [step, value] : got) CHECK_THAT(value, WithinRel(expected.at(step), 1e-4));
  }
}

TEST_CASE("ddp: a spike on one rank is a spike of the run, whose step all ranks skip or undo") {
  const std::string action = GENERATE("skip", "rollback", "warn");
  const TemporaryFolder folder;
  const auto runs = fit(
      folder.path(), 2, 8,
      {"--trainer.max_epochs", "2", "--model.trouble", "spike", "--model.trouble_step", "5",
       "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "2",
       "--trainer.callbacks+=SpikeDetection", "--trainer.callbacks.action", action, "--trainer.callbacks.rtol", "20"});
  // Weights and steps of the ranks are compared where the fit ends.
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "in step 6; the mean of the last 5 steps is "));
  CHECK(says(runs[0].err, "the optimizer's step is skipped") == (action == "skip"));
  CHECK(says(runs[0].err, "were restored from") == (action == "rollback"));
}

TEST_CASE("ddp: a step that a rollback has undone does not count, as in one process") {
  const auto progress_of = [](int world, const Arguments& strategy) {
    const TemporaryFolder folder;
    const Arguments options{"--trainer.max_epochs",
                            "2",
                            "--trainer.on_nonfinite",
                            "rollback",
                            "--model.trouble",
                            "nan_once",
                            "--model.trouble_step",
                            "5",
                            "--model.trouble_rank",
                            world == 1 ? "0" : "1",
                            "--trainer.callbacks+=ModelCheckpoint",
                            "--trainer.callbacks.every_n_train_steps",
                            "2"};
    const auto runs = fit(folder.path(), world, 8, options + strategy);
    REQUIRE(all_exit(runs, 0));
    CHECK(says(runs[0].err, "were restored from"));
    return fulgur::read_checkpoint_state(last_checkpoint(folder.path())).at("progress").at("global_step").as_int();
  };
  const int64_t alone = progress_of(1, {});
  CHECK(progress_of(2, {}) == alone);
  CHECK(progress_of(2, {"--trainer.strategy", "fsdp", "--trainer.strategy.sharding", "gradients"}) == alone);
}

}  // namespace ddp_monitors_test
