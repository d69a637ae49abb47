#include "ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace ddp_training_test {

using namespace fulgur::test;

namespace {

constexpr auto& kSteps = "100";

std::filesystem::path single(const TemporaryFolder& folder, const std::vector<std::string>& more) {
  const Finished run =
      trainer(probe("fit", 1, 8, more), {.folder = folder.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  return last_checkpoint(folder.path());
}

std::filesystem::path together(const TemporaryFolder& folder, int world, const std::vector<std::string>& more) {
  const auto runs = run_ranks({.count = world, .folder = folder.path()}, probe("fit", world, 8, more));
  REQUIRE(all_exit(runs, 0));
  return last_checkpoint(folder.path());
}

}  // namespace

TEST_CASE("ddp: 2 and 4 ranks reach the weights of one process on the batches of all") {
  const int world = GENERATE(2, 4);
  const std::vector<std::string> more = GENERATE(
      std::vector<std::string>{}, std::vector<std::string>{"--trainer.accumulate_grad_batches", "3"},
      std::vector<std::string>{"--trainer.gradient_clip_val", "0.5", "--optimizer", "AdamW", "--optimizer.lr", "0.01"});
  std::vector<std::string> arguments{"--trainer.max_steps", kSteps};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const TemporaryFolder one, many;
  CHECK(difference(single(one, arguments), together(many, world, arguments)) < 1e-6);
}

TEST_CASE("ddp: adapters, which alone are exchanged, become those of one process") {
  std::vector<std::string> arguments{"--trainer.max_steps", "40", "--adapters.target", "['*']", "--adapters.rank", "2"};
  if (GENERATE(false, true)) arguments.insert(arguments.end(), {"--trainer.accumulate_grad_batches", "3"});
  const TemporaryFolder one, many, without;
  const auto alone = single(one, arguments);
  CHECK(difference(alone, together(many, 2, arguments)) < 1e-6);
  CHECK_THROWS(difference(alone, single(without, {"--trainer.max_steps", "1"})));
}

TEST_CASE("ddp: a loss of the outputs of all ranks, gathered with gradients, is that of one process") {
  const TemporaryFolder one, many;
  const std::vector<std::string> arguments{"--trainer.max_steps", "20"};
  const auto alone = single(one, arguments);
  std::vector<std::string> gathered = arguments;
  gathered.insert(gathered.end(), {"--model.gathers", "true"});
  CHECK(difference(alone, together(many, 2, gathered)) < 1e-6);
}

TEST_CASE("ddp: manual optimization of two parts, each with a Reducer, reaches the weights of one process") {
  using Case = std::pair<std::string, std::string>;
  // Elsewhere than with toggled optimizers, gradients of both parts would pile up over two batches.
  const auto [how, accumulate] =
      GENERATE(Case{"toggled", "1"}, Case{"toggled", "2"}, Case{"inputs", "1"}, Case{"all", "1"});
  const std::vector<std::string> arguments{
      "--model", "ProbePair",   "--model.how", how, "--model.accumulate", accumulate, "--trainer.max_epochs",
      "5",       "--optimizer", "null"};
  const TemporaryFolder one, many;
  CHECK(difference(single(one, arguments), together(many, 2, arguments)) < 1e-6);
}

TEST_CASE("ddp: a parameter in two optimizers, and a batch norm that cannot be switched, are errors that name them") {
  const TemporaryFolder folder;
  const auto shared = run_ranks(
      {.count = 2, .folder = folder.path()},
      probe("fit", 2, 8,
            {"--model", "ProbePair", "--model.shared", "true", "--optimizer", "null", "--trainer.max_steps", "1"}));
  CHECK(all_exit(shared, 2));
  CHECK(says(shared[0].err, "'maker.bias' of SGD is in another too"));
  const auto fixed =
      run_ranks({.count = 2, .folder = folder.path()},
                probe("fit", 2, 8,
                      {"--model", "ProbeFixedNorm", "--trainer.sync_batchnorm", "true", "--trainer.max_steps", "1"}));
  CHECK(all_exit(fixed, 2));
  CHECK(says(fixed[0].err, "these are torch::nn::BatchNorm: norm"));
}

TEST_CASE("ddp: sync_batchnorm makes batch norm that of one process on the batches of all") {
  const std::vector<std::string> arguments{"--model.norm", "true", "--trainer.max_steps", "30"};
  std::vector<std::string> synced = arguments;
  synced.insert(synced.end(), {"--trainer.sync_batchnorm", "true"});
  const TemporaryFolder one, own, all;
  const auto whole = single(one, arguments);
  CHECK(difference(whole, together(own, 2, arguments)) > 1e-3);
  CHECK(difference(whole, together(all, 2, synced)) < 2e-6);
}

TEST_CASE("ddp: replicas that start unequal are made equal, and compared bit by bit") {
  const TemporaryFolder folder;
  // Without a seed each process draws its own weights.
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 8,
                                                             {"--seed_everything", "false", "--trainer.max_steps", "5",
                                                              "--trainer.strategy.check_replicas_every", "1"}));
  CHECK(all_exit(runs, 0));
}

TEST_CASE("F29: a bit that flips on one replica is found at the next check, by rank and name") {
  const TemporaryFolder folder;
  const auto runs = run_ranks(
      {.count = 2, .folder = folder.path()},
      probe("fit", 2, 8,
            {"--trainer.max_steps", "8", "--trainer.strategy.check_replicas_every", "2", "--model.trouble", "flip"}));
  CHECK(all_exit(runs, 5));
  for (const Finished& run : runs)
    CHECK(says(run.err, "after step 4 these differ from rank 0's: the weights 'last.weight' of rank 1"));
}

TEST_CASE("ddp: each rank draws its own random numbers") {
  const TemporaryFolder folder;
  REQUIRE(
      all_exit(run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 8, {"--trainer.max_steps", "1"})), 0));
  const TemporaryFolder again;
  const auto runs = run_ranks({.count = 2, .folder = again.path()}, probe("fit", 2, 8, {"--trainer.max_steps", "1"}));
  REQUIRE(all_exit(runs, 0));
  const auto number = [](const std::string& text) { return text.substr(text.find("random number"), 30); };
  const std::string rank_1 = read_text(run_folder(folder.path()) / "rank_1.log");
  REQUIRE(says(rank_1, "random number"));
  CHECK(number(runs[0].err) != number(rank_1));
  CHECK(number(read_text(run_folder(again.path()) / "rank_1.log")) == number(rank_1));
}

TEST_CASE("ddp: rank 0 has the console and the loggers, the others a file each") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 3, .folder = folder.path()}, probe("fit", 3, 9, {"--trainer.max_epochs", "1"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "stopped: max_epochs"));
  CHECK(says(runs[0].out, "Fit metric"));
  CHECK(runs[1].out + runs[1].err + runs[2].out + runs[2].err == "");
  const auto dir = run_folder(folder.path());
  CHECK(std::filesystem::exists(dir / "rank_1.log"));
  CHECK(says(read_text(dir / "rank_2.log"), "rank 2 of 3"));
  CHECK_FALSE(std::filesystem::exists(dir / "rank_0.log"));
  // With sync_dist the mean of all ranks, else rank 0's own.
  const std::string rows = read_text(dir / "metrics.jsonl");
  CHECK(says(rows, "\"rank_of_all\":1.0"));
  CHECK(says(rows, "\"own_rank\":0.0"));
  CHECK_FALSE(says(rows, "\"own_rank\":1.0"));
}

TEST_CASE("ddp: a stop that one rank asks for ends all at the same step") {
  const int rank = GENERATE(0, 1);
  const TemporaryFolder folder;
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()},
                probe("fit", 2, 8,
                      {"--trainer.max_steps", "200", "--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                       "--trainer.callbacks.stop_rank", std::to_string(rank), "--trainer.callbacks.stop_step", "3"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "stopped: the probe asked for it"));
  // Seen one agreement later, and read at the next.
  CHECK((says(runs[0].err, "4 steps") || says(runs[0].err, "5 steps")));
}

TEST_CASE("ddp: early stopping acts on the metric of all ranks") {
  const TemporaryFolder folder;
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()},
                probe("fit", 2, 8,
                      {"--trainer.max_epochs", "50", "--optimizer.lr", "0.0", "--trainer.callbacks+=EarlyStopping",
                       "--trainer.callbacks.monitor", "val_loss", "--trainer.callbacks.patience", "2"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "3 epochs"));
}

TEST_CASE("ddp: auto_micro_batch: if one rank runs out of memory, all compute smaller parts, with the same gradients") {
  const auto fit = [](const TemporaryFolder& folder, std::vector<std::string> more) {
    more.insert(more.end(), {"--trainer.max_steps", "6", "--trainer.precision", "64-true", "--data.num_train", "48"});
    return run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 8, more));
  };
  const std::vector<std::string> micro{"--trainer.auto_micro_batch", "true"};
  std::vector<std::string> scarce = micro;
  scarce.insert(scarce.end(), {"--model.trouble", "memory_of_two", "--model.trouble_rank", "1"});
  const TemporaryFolder plain_folder, whole_folder, split_folder;
  const auto plain = fit(plain_folder, {});
  const auto whole = fit(whole_folder, micro);
  const auto split = fit(split_folder, scarce);
  REQUIRE(all_exit(plain, 0));
  REQUIRE(all_exit(whole, 0));
  REQUIRE(all_exit(split, 0));
  CHECK(says(split[0].err, "rank 1 (cpu) ran out of memory with 4 samples"));
  CHECK(says(split[0].err, "micro-batches of at most 2 samples"));
  CHECK_FALSE(says(whole[0].err, "ran out of memory"));
  const auto weights = [](const TemporaryFolder& folder) { return last_checkpoint(folder.path()); };
  CHECK(difference(weights(plain_folder), weights(whole_folder)) < 1e-12);
  CHECK(difference(weights(plain_folder), weights(split_folder)) < 1e-12);
}

TEST_CASE(
    "ddp: auto_micro_batch: a rank that runs out of memory in the second backward of a window waits for no other") {
  const auto fit = [](const TemporaryFolder& folder, std::vector<std::string> more) {
    more.insert(more.end(), {"--trainer.max_steps", "6", "--trainer.precision", "64-true", "--data.num_train", "48",
                             "--trainer.auto_micro_batch", "true", "--trainer.accumulate_grad_batches", "2"});
    return run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 8, more));
  };
  const TemporaryFolder whole_folder, split_folder;
  const auto whole = fit(whole_folder, {});
  const auto split = fit(split_folder, {"--model.trouble", "memory_of_two_in_backward", "--model.trouble_rank", "1"});
  REQUIRE(all_exit(whole, 0));
  REQUIRE(all_exit(split, 0));
  CHECK_FALSE(says(whole[0].err, "ran out of memory"));
  CHECK(says(split[0].err, "rank 1 (cpu) ran out of memory with 4 samples"));
  CHECK(difference(last_checkpoint(whole_folder.path()), last_checkpoint(split_folder.path())) < 1e-12);
}

}  // namespace ddp_training_test
