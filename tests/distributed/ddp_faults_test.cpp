#include "ranks.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <csignal>

#include "fulgur/checkpoint/checkpoint_folder.h"

namespace ddp_faults_test {

using namespace fulgur::test;

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<std::string> troubled(int world, const std::string& trouble, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"--trainer.max_steps", "20", "--model.trouble", trouble};
  all.insert(all.end(), more.begin(), more.end());
  return probe("fit", world, 12, all);
}

}  // namespace

TEST_CASE("F20: a rank that is killed ends the others at once, with its place in their message") {
  const int world = GENERATE(2, 4);
  const std::string step = GENERATE("0", "7");
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto runs =
      run_ranks({.count = world, .folder = folder.path()}, troubled(world, "kill", {"--model.trouble_step", step}));
  CHECK(seconds_since(begin) < 15);
  for (int rank = 0; rank < world; ++rank) {
    CHECK(runs[static_cast<size_t>(rank)].exit_code == (rank == 1 ? 128 + SIGKILL : 5));
    if (rank == 1) continue;
    CHECK(says(runs[static_cast<size_t>(rank)].err, "lost another rank"));
    CHECK_FALSE(says(runs[static_cast<size_t>(rank)].err, "frame #"));
  }
}

TEST_CASE("F20: a rank that leaves early, as if it were done") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, troubled(2, "exit"));
  CHECK(runs[0].exit_code == 5);
  CHECK(says(runs[0].err, "lost another rank"));
  CHECK(runs[1].exit_code == 0);
}

TEST_CASE("F20: a rank that is killed in validation") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              troubled(2, "kill_in_validation", {"--model.trouble_step", "1"}));
  CHECK(runs[0].exit_code == 5);
  CHECK(runs[1].exit_code == 128 + SIGKILL);
}

TEST_CASE("F22: a rank that hangs is waited for as long as timeout_s says, and seen in the report") {
  const std::string trouble = GENERATE("loop", "stop");
  const TemporaryFolder folder;
  const int port = free_port();
  const auto arguments = troubled(2, trouble, {"--trainer.strategy.timeout_s", "3"});
  Running first(arguments, start_of_rank(0, 2, port, folder.path())),
      second(arguments, start_of_rank(1, 2, port, folder.path()));
  const auto begin = std::chrono::steady_clock::now();
  const Finished waited = first.wait();
  CHECK(seconds_since(begin) < 12);
  INFO(waited.err);
  CHECK(waited.exit_code == 5);
  CHECK(says(waited.err, "timed out waiting for another rank"));
  CHECK(says(waited.err, "rank 1: "));
  CHECK(says(waited.err, "at step 3"));
}  // the destructor ends the one that hangs

TEST_CASE("F22: a rank that hangs in a resumed run is reported with the step of the run") {
  const TemporaryFolder folder;
  const std::vector<std::string> short_fit{"--trainer.max_steps", "6"};
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 12, short_fit)), 0));
  const std::string from = last_checkpoint(folder.path()).string();
  const Finished run = trainer(troubled(2, "loop",
                                        {"--ckpt_path", from, "--trainer.devices", "2", "--trainer.strategy.timeout_s",
                                         "3", "--model.trouble_step", "8", "--allow-config-change"}),
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "rank 1: training_step at step 8"));
}

TEST_CASE("F28: what fails on one rank is reported by that rank, and the others say that they lost it") {
  const std::string trouble = GENERATE("throw", "bad_alloc", "no_loss", "throw_in_validation");
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()}, troubled(2, trouble, {"--model.trouble_step", "2"}));
  CHECK(seconds_since(begin) < 15);
  CHECK(runs[0].exit_code == 5);
  CHECK(says(runs[0].err, "lost another rank"));
  if (trouble == "throw") {
    INFO(runs[0].err);
    CHECK(says(runs[0].err, "rank 1: failed in training_step at step 2"));
  }
  CHECK(runs[1].exit_code == (trouble == "no_loss" ? 5 : 1));
  CHECK(says(runs[1].err, "[rank 1]"));
  CHECK(says(runs[1].err, trouble == "bad_alloc" ? "memory"
                          : trouble == "no_loss" ? "returned no loss"
                                                 : "as asked for"));
}

TEST_CASE("F28: a parameter that one rank alone leaves out is named by that rank") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, troubled(2, "unused"));
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[1].err, "on rank 1 these got none: first.weight"));
}

TEST_CASE("F28: a parameter left out by the last batch of a window, which the first batch used, is named") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              troubled(2, "unused_in_second_batch", {"--trainer.accumulate_grad_batches", "2"}));
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[1].err, "on rank 1 these got none: first.weight"));
}

TEST_CASE("ddp: a loss that is NaN on one rank, by each policy") {
  const TemporaryFolder raised, skipped;
  const auto runs = run_ranks({.count = 2, .folder = raised.path()}, troubled(2, "nan"));
  CHECK(runs[1].exit_code == 6);
  CHECK(says(runs[1].err, "the loss is not finite"));
  CHECK(says(runs[1].err, "3 of rank 1"));
  const auto noted = [](const TemporaryFolder& folder) {
    return read_text(run_folder(folder.path()) / "nonfinite.jsonl");
  };
  CHECK(says(noted(raised), "\"ranks\":[1]"));
  const auto skips = run_ranks({.count = 2, .folder = skipped.path()},
                               troubled(2, "nan",
                                        {"--trainer.on_nonfinite", "skip", "--trainer.strategy.check_replicas_every",
                                         "1", "--model.trouble_step", "4"}));
  CHECK(all_exit(skips, 0));
  CHECK(says(read_text(run_folder(skipped.path()) / "metrics.jsonl"), "\"skipped_steps\":1.0"));
  CHECK(says(noted(skipped), "\"ranks\":[1]"));
  CHECK(says(skips[0].err, "of rank 1"));
  const TemporaryFolder stopped;
  const auto stops =
      run_ranks({.count = 2, .folder = stopped.path()}, troubled(2, "nan", {"--trainer.on_nonfinite", "stop"}));
  CHECK(all_exit(stops, 6));
  CHECK(says(noted(stopped), "\"ranks\":[1]"));
  CHECK(says(stops[0].err, "3 of rank 1"));
}

TEST_CASE("ddp: a step that is skipped leaves no NaN in buffers, and checkpoints are written again") {
  const char* rank = GENERATE("0", "1");
  const TemporaryFolder folder;
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()},
                troubled(2, "nan_input",
                         {"--trainer.on_nonfinite", "skip", "--model.norm", "true", "--model.trouble_rank", rank,
                          "--trainer.strategy.broadcast_buffers", GENERATE("true", "false")}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(read_text(run_folder(folder.path()) / "metrics.jsonl"), "\"skipped_steps\":1.0"));
  const auto last = fulgur::read_checkpoint(last_checkpoint(folder.path()));
  for (const auto& [name, value] : last.module) CHECK(value.isfinite().all().item<bool>());
  for (const auto& run : runs) CHECK_FALSE(says(run.err, "is not written"));
}

TEST_CASE("ddp: whether weights are finite is decided for all ranks by rank 0's, which are written") {
  // The next forward takes rank 0's buffers. Rank 1 refused the save alone, and rank 0 waited for it.
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              troubled(2, "nan_buffer",
                                       {"--model.norm", "true", "--trainer.callbacks+=ModelCheckpoint",
                                        "--trainer.callbacks.every_n_train_steps", "1",
                                        "--trainer.callbacks.save_top_k", "-1", "--trainer.strategy.timeout_s", "20"}));
  REQUIRE(all_exit(runs, 0));
  const auto saved = fulgur::list_checkpoints(run_folder(folder.path()) / "checkpoints");
  CHECK(std::any_of(saved.begin(), saved.end(), [](const auto& summary) { return summary.global_step == 4; }));
}

TEST_CASE(
    "F4: killed again and again, ranks resume from what was saved and end with the weights of an undisturbed run") {
  const TemporaryFolder quiet, hunted;
  const std::vector<std::string> options{"--trainer.max_steps", "30", "--trainer.callbacks+=ModelCheckpoint",
                                         "--trainer.callbacks.every_n_train_steps", "4"};
  std::vector<std::string> arguments = options;
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = quiet.path()}, probe("fit", 2, 8, arguments)), 0));
  for (const char* step : {"6", "13", "22"}) {
    std::vector<std::string> killed = options;
    killed.insert(killed.end(), {"--resume", "--model.trouble", "kill", "--model.trouble_step", step,
                                 "--model.trouble_rank", step[0] == '1' ? "0" : "1", "--allow-config-change"});
    const auto runs = run_ranks({.count = 2, .folder = hunted.path()}, probe("fit", 2, 8, killed));
    CHECK((runs[0].exit_code == 128 + SIGKILL || runs[1].exit_code == 128 + SIGKILL));
  }
  arguments.insert(arguments.end(), {"--resume", "--allow-config-change"});
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = hunted.path()}, probe("fit", 2, 8, arguments)), 0));
  CHECK(same_bits(last_checkpoint(quiet.path()), last_checkpoint(hunted.path())));
}

}  // namespace ddp_faults_test
