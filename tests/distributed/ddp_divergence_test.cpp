// Ranks that do not do the same: the run ends with what differs, instead of continuing with other weights on each.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <csignal>
#include <set>
#include <sstream>
#include <thread>

#include "fulgur/checkpoint/checkpoint_folder.h"

#include "ranks.h"

namespace ddp_divergence_test {

using namespace fulgur::test;

namespace {

std::vector<Finished> diverging(const std::filesystem::path& folder, const std::string& module, const std::string& how,
                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"--model", module, "--model.how", how};
  // This one brings its optimizers.
  if (module == "DivergingPair") all.insert(all.end(), {"--optimizer", "null"});
  all.insert(all.end(), more.begin(), more.end());
  return run_ranks({.count = 2, .folder = folder}, probe("fit", 2, 16, all));
}

// 64 samples in batches of 8 on each of two ranks: four steps an epoch.
const std::vector<std::string> kTwoEpochs{"--trainer.max_epochs", "2"};

}  // namespace

TEST_CASE("ddp: a step on gradients that no_sync kept to the rank is refused, with what to do") {
  const std::string from = GENERATE("0", "2");
  const TemporaryFolder folder;
  const auto runs =
      diverging(folder.path(), "DivergingPair", "unsynced", {"--model.from", from, "--trainer.max_epochs", "2"});
  REQUIRE(all_exit(runs, 5));
  for (const Finished& run : runs) {
    INFO(run.err);
    CHECK(
        says(run.err, "SGD must step on gradients of all ranks; that of 'first.weight' was computed under no_sync()"));
    CHECK(says(run.err, "sync_gradients(optimizer)"));
  }
}

TEST_CASE("ddp: gradients of no_sync that were exchanged afterwards are stepped on, and ranks stay the same") {
  const std::string how = GENERATE("not", "synced_late", "averaged_by_hand");
  const TemporaryFolder folder;
  CHECK(all_exit(diverging(folder.path(), "DivergingPair", how, kTwoEpochs), 0));
}

TEST_CASE("ddp: a process alone may step on gradients of no_sync") {
  const TemporaryFolder folder;
  const Finished run = trainer(probe("fit", 1, 8,
                                     {"--model", "DivergingPair", "--model.how", "unsynced", "--optimizer", "null",
                                      "--trainer.max_epochs", "1"}),
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 0);
}

TEST_CASE(
    "ddp: ranks that step different optimizers end at the epoch's end, with an error that names them and possible "
    "causes") {
  const TemporaryFolder folder;
  const auto runs = diverging(folder.path(), "DivergingPair", "other_optimizer", kTwoEpochs);
  REQUIRE(all_exit(runs, 5));
  for (const Finished& run : runs) {
    INFO(run.err);
    CHECK(says(run.err, "after step 4 these differ from rank 0's"));
    CHECK(says(run.err, "the steps of optimizer 0 (SGD): 4 on rank 0, 0 on rank 1"));
    CHECK(says(run.err, "the weights 'first.weight' of rank 1"));
    CHECK(says(run.err, "no_sync() without sync_gradients(optimizer)"));
  }
}

TEST_CASE("ddp: ranks with different numbers of steps end at once, under max_steps too") {
  const TemporaryFolder folder;
  const auto limit = GENERATE(std::vector<std::string>{"--trainer.max_epochs", "2"},
                              std::vector<std::string>{"--trainer.max_steps", "3"});
  std::vector<std::string> more{"--model.from", "2"};
  more.insert(more.end(), limit.begin(), limit.end());
  const auto runs = diverging(folder.path(), "DivergingPair", "fewer_steps", more);
  REQUIRE(all_exit(runs, 5));
  // The rank that reaches its limit is alone: the other one continues to train.
  if (limit.front() == "--trainer.max_steps") {
    CHECK(says(runs[0].err, "after epoch 0, batch 2 they have made 2 to 3"));
    return;
  }
  for (const Finished& run : runs) {
    INFO(run.err);
    CHECK(says(run.err,
               "after epoch 0, batch 3 the number of steps is 4 (4 of optimizer 0, 0 of optimizer 1) on rank 0, "));
    CHECK(says(run.err, "3 (3 of optimizer 0, 0 of optimizer 1) on rank 1"));
  }
}

TEST_CASE("ddp: a learning rate or weights that one rank changes are found by default") {
  const std::string how = GENERATE("rate", "weights");
  const TemporaryFolder folder;
  // At an epoch's end, and where a fit ends inside an epoch.
  const auto limit = GENERATE(std::vector<std::string>{"--trainer.max_epochs", "2"},
                              std::vector<std::string>{"--trainer.max_steps", "3"});
  const auto runs = diverging(folder.path(), "DivergingLayer", how, limit);
  REQUIRE(all_exit(runs, 5));
  for (const Finished& run : runs) {
    INFO(run.err);
    if (how == "rate")
      CHECK(says(run.err, "the learning rate of optimizer 0 (SGD), group 0: 0.05 on rank 0, 0.1 on rank 1"));
    CHECK(says(run.err, "the weights 'layer.bias' of rank 1"));
    CHECK(says(run.err, "all_reduce it first"));
  }
}

TEST_CASE("ddp: check_replicas_every -1 lets ranks differ") {
  const TemporaryFolder folder;
  CHECK(all_exit(diverging(folder.path(), "DivergingLayer", "weights",
                           {"--trainer.max_epochs", "2", "--trainer.strategy.check_replicas_every", "-1"}),
                 0));
}

TEST_CASE("ddp: what only one rank requests ends all ranks cleanly, with what each did") {
  const std::string how = GENERATE("save", "accumulation", "barrier", "gather");
  CAPTURE(how);
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto runs = diverging(folder.path(), "DivergingLayer", how,
                              {"--trainer.max_epochs", "2", "--trainer.strategy.timeout_s", "3"});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  CHECK(all_exit(runs, 5));
  const std::string said = runs[0].err + runs[1].err;
  INFO(said);
  CHECK(says(said, "a collective that some ranks do not call"));
  CHECK(says(said, "what the ranks did:"));
  CHECK_FALSE(says(said, "terminate called"));
  if (how == "save") CHECK(says(said, " in a checkpoint at step 3"));
  if (how == "gather") CHECK(says(said, "all_gather in training_step at step 2"));
}

TEST_CASE("ddp: a collective that one rank calls in an evaluation is waited for as long as timeout_s says") {
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              probe("validate", 2, 16,
                                    {"--model", "DivergingLayer", "--model.how", "gather_in_validation", "--model.at",
                                     "0", "--trainer.strategy.timeout_s", "3"}));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  CHECK(all_exit(runs, 5));
  const std::string said = runs[0].err + runs[1].err;
  INFO(said);
  CHECK(says(said, "a collective that some ranks do not call"));
}

TEST_CASE("ddp: a second SIGTERM ends a rank that waits for another, and the last checkpoint stays whole") {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto arguments = probe("fit", 2, 16,
                               {"--trainer.max_steps", "20", "--model.trouble", "loop", "--model.trouble_step", "6",
                                "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "2",
                                "--trainer.strategy.timeout_s", "60"});
  Running first(arguments, start_of_rank(0, 2, port, folder.path())),
      second(arguments, start_of_rank(1, 2, port, folder.path()));
  const auto last = [&] { return folder / "fulgur_logs" / "version_0" / "checkpoints" / "last.ckpt"; };
  REQUIRE(first.wait_until([&] { return std::filesystem::exists(last()); }));
  std::this_thread::sleep_for(std::chrono::seconds(2));  // rank 1 hangs in its step, and rank 0 waits for it
  const auto begin = std::chrono::steady_clock::now();
  first.signal(SIGTERM);
  first.signal(SIGTERM);  // as a scheduler and a launcher send it; not counted
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  CHECK_FALSE(first.has_ended());
  first.signal(SIGTERM);
  CHECK(first.wait().exit_code == 143);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(fulgur::verify_checkpoint(std::filesystem::canonical(last())).ok());
}

TEST_CASE("ddp: options of log() that differ between ranks are named, with the ranks") {
  const TemporaryFolder folder, epochs;
  const auto steps = diverging(folder.path(), "DivergingLayer", "log_options", kTwoEpochs);
  CHECK(all_exit(steps, 5));
  for (const Finished& run : steps)
    CHECK(says(run.err,
               "'loss' must be logged with the same options on all ranks; in a step or batch hook of "
               "training, on_epoch is false on rank 0 and true on rank 1"));
  const auto of_epoch = diverging(epochs.path(), "DivergingLayer", "log_options_in_epoch", kTwoEpochs);
  CHECK(all_exit(of_epoch, 5));
  for (const Finished& run : of_epoch)
    CHECK(says(run.err,
               "'of_epoch' must be logged with the same options on all ranks; in an epoch hook of training, "
               "reduce_fx is mean on rank 0 and max on rank 1"));
}

TEST_CASE("ddp: data that differ between ranks are refused before the first step, with what differs") {
  struct Case {
    const char *other, *message;
  };
  const auto [other, message] = GENERATE(
      Case{"samples", "the same train loaders. They differ in samples: 64 on rank 0, 63 on rank 1"},
      Case{"eval_samples", "the same validate loaders. They differ in samples: 32 on rank 0, 31 on rank 1"},
      Case{"batch_size", "batches of one process: 8 on rank 0, 4 on rank 1; batch_size: 8 on rank 0, 16 on rank 1"},
      Case{"shuffle", "shuffle: true on rank 0, false on rank 1"});
  const TemporaryFolder folder;
  const std::vector<std::string> different{"--trainer.max_epochs", "1", "--data.other_on_rank_1", other};
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 16, different));
  CHECK(all_exit(runs, 3));
  for (const Finished& run : runs) {
    INFO(run.err);
    CHECK(says(run.err, message));
    CHECK(says(run.err, "use_distributed_sampler: false"));
  }
}

TEST_CASE("ddp: a seed that is drawn is the same on all ranks") {
  const TemporaryFolder folder;
  REQUIRE(all_exit(
      run_ranks({.count = 2, .folder = folder.path()},
                probe("fit", 2, 16,
                      {"--trainer.max_epochs", "1", "--seed_everything", "true", "--trainer.callbacks+=ProbeCallback",
                       "--trainer.callbacks.seen", folder.path().string()})),
      0));
  std::istringstream seen(read_text(folder / "0") + read_text(folder / "1"));
  std::set<std::string> samples;
  for (std::string line; std::getline(seen, line);) samples.insert(line);
  CHECK(samples.size() == 64);
}

TEST_CASE("ddp: rank 0 alone decides from where a run resumes, and with which options") {
  const TemporaryFolder folder;
  REQUIRE(
      all_exit(run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 16, {"--trainer.max_steps", "2"})), 0));
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()},
                probe("fit", 2, 16, {"--trainer.max_steps", "4", "--resume", "--trainer.log_every_n_steps", "1"}));
  REQUIRE(all_exit(runs, 0));
  INFO(runs[1].err);
  CHECK(says(runs[0].err, "resume: "));
  CHECK_FALSE(says(runs[1].err, "resume: "));
}

}  // namespace ddp_divergence_test
