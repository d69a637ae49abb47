// Checkpoints that each rank of fsdp writes its parts of: the same content as those with whole tensors.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <tuple>

#include "checkpoint_contents.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"
#include "ranks.h"
#include "support/gpu.h"

namespace sharded_checkpoints_test {

using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::cat;
using fulgur::CheckpointContent;
namespace fs = std::filesystem;

namespace {

const Arguments kLength{"--optimizer",          "AdamW", "--optimizer.lr",   "0.01", "--model.dropout", "0.2",
                        "--trainer.max_epochs", "3",     "--data.num_train", "120"};

Arguments sharded(const std::string& sharding) {
  Arguments arguments{"--trainer.strategy.sharding",        sharding, "--trainer.strategy.units", "[first, last]",
                      "--trainer.strategy.state_dict_type", "sharded"};
  if (sharding == "hybrid") arguments = arguments + Arguments{"--trainer.strategy.shard_size", "2"};
  return arguments;
}

std::vector<Finished> fit(const fs::path& folder, int world, const Arguments& more,
                          const std::string& strategy = "fsdp") {
  if (world == 1) return {trainer(probe("fit", 1, 12, more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
  Arguments arguments = probe("fit", world, 12, Arguments{"--trainer.strategy.check_replicas_every", "1"} + more);
  *std::ranges::find(arguments, "ddp") = strategy;
  return run_ranks({.count = world, .folder = folder}, arguments);
}

}  // namespace

TEST_CASE("sharded checkpoints: the parts of all ranks are the whole tensors of a full checkpoint") {
  const auto [world, sharding, async] =
      GENERATE(std::tuple<int, std::string, std::string>{2, "optimizer", "true"}, std::tuple{3, "optimizer", "false"},
               std::tuple{2, "gradients", "true"}, std::tuple{4, "gradients", "false"},
               std::tuple{2, "parameters", "false"}, std::tuple{3, "parameters", "true"},
               std::tuple{4, "parameters", "true"}, std::tuple{4, "hybrid", "true"}, std::tuple{4, "hybrid", "false"});
  CAPTURE(world, sharding, async);
  const TemporaryFolder full, parts;
  const Arguments options = kLength + sharded(sharding) + Arguments{"--trainer.async_checkpoint", async};
  REQUIRE(all_exit(fit(parts.path(), world, options), 0));
  REQUIRE(all_exit(fit(full.path(), world, options + Arguments{"--trainer.strategy.state_dict_type", "full"}), 0));
  const fs::path whole = last_checkpoint(full.path()), divided = last_checkpoint(parts.path());
  CHECK(part_files(whole) == 0);
  // Of the weights and the optimizer; a rank that has no element of them has no file.
  CHECK(part_files(divided) >= (sharding == "hybrid" ? 4 : world));
  CHECK(same_content(whole, divided));
  CHECK(fulgur::verify_checkpoint(divided).ok());
  // Nothing of a save is left beside it.
  for (const auto& entry : fs::directory_iterator(divided.parent_path()))
    CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("sharded checkpoints: an interrupted run continues to the bit, over any number of ranks and any strategy") {
  const std::string sharding = GENERATE("optimizer", "parameters");
  const std::string cut_at = GENERATE("1", "7");
  const Arguments options = kLength + sharded(sharding) + Arguments{"--trainer.accumulate_grad_batches", "2"};
  const TemporaryFolder whole, parts;
  REQUIRE(all_exit(fit(whole.path(), 2, options), 0));
  REQUIRE(all_exit(
      fit(parts.path(), 2,
          options + Arguments{"--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                              "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", cut_at}),
      75));
  REQUIRE(part_files(last_checkpoint(parts.path())) > 0);
  const auto copied = [&](const TemporaryFolder& to) {
    fs::copy(parts.path(), to.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  };
  const TemporaryFolder ddp, three, one;
  for (const TemporaryFolder* folder : {&ddp, &three, &one}) copied(*folder);
  REQUIRE(all_exit(fit(parts.path(), 2, options + Arguments{"--resume"}), 0));
  CHECK(same_content(last_checkpoint(whole.path()), last_checkpoint(parts.path())));
  const Arguments continued =
      kLength + Arguments{"--trainer.accumulate_grad_batches", "2", "--resume", "--allow-config-change"};
  REQUIRE(all_exit(fit(ddp.path(), 2, continued, "ddp"), 0));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(ddp.path())) < 1e-6);
  // Other numbers of ranks draw other random numbers: only that they continue.
  REQUIRE(all_exit(fit(three.path(), 3, continued + sharded("gradients")), 0));
  REQUIRE(all_exit(fit(one.path(), 1, continued), 0));
  CHECK(part_files(last_checkpoint(one.path())) == 0);
}

TEST_CASE("sharded checkpoints: without random numbers, 1, 2, 3 and 4 ranks hand over to each other") {
  const Arguments options{"--optimizer", "AdamW", "--optimizer.lr", "0.01", "--data.num_train", "96"};
  const TemporaryFolder whole, parts;
  REQUIRE(all_exit(fit(whole.path(), 1, options + Arguments{"--trainer.max_steps", "24"}), 0));
  REQUIRE(all_exit(fit(parts.path(), 2, options + sharded("parameters") + Arguments{"--trainer.max_steps", "5"}), 0));
  const Arguments more = options + Arguments{"--resume", "--allow-config-change"};
  for (const auto& [world, sharding, steps] :
       {std::tuple{4, "optimizer", "9"}, {3, "parameters", "14"}, {4, "hybrid", "19"}, {1, "", "24"}})
    REQUIRE(
        all_exit(fit(parts.path(), world,
                     more + (world == 1 ? Arguments{} : sharded(sharding)) + Arguments{"--trainer.max_steps", steps}),
                 0));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(parts.path())) < 1e-6);
}

TEST_CASE("sharded checkpoints: a rank that resumes needs no more memory than one that trains") {
  const std::string type = GENERATE("full", "sharded");
  const TemporaryFolder folder;
  // 64 MB of weights, 128 MB of states.
  const Arguments options =
      Arguments{"--optimizer", "AdamW", "--model.hidden", "2000000", "--data.batch_size", "1", "--data.num_eval", "4"} +
      sharded("parameters") + Arguments{"--trainer.strategy.state_dict_type", type};
  const auto peak_of = [&](const Arguments& more) {
    const auto ranks = fit(folder.path(), 4, options + more);
    REQUIRE(all_exit(ranks, 0));
    const std::string text = "peak memory: cpu ";
    const size_t at = ranks[0].err.find(text);
    REQUIRE(at != std::string::npos);
    return std::stod(ranks[0].err.substr(at + text.size()));
  };
  const double trained = peak_of({"--trainer.max_steps", "1"});
  // Nothing is left to train: the peak is that of the start.
  const double resumed = peak_of({"--trainer.max_steps", "1", "--ckpt_path", "last"});
  CAPTURE(trained, resumed);
  CHECK(resumed < trained + 32);
}

TEST_CASE("sharded checkpoints: exported, inspected and evaluated as others are") {
  const TemporaryFolder folder;
  REQUIRE(all_exit(fit(folder.path(), 2, kLength + sharded("parameters")), 0));
  const fs::path checkpoint = last_checkpoint(folder.path()), file = folder.path() / "net.safetensors";
  const Finished exported =
      trainer({"export", checkpoint.string(), "--output", file.string()}, {.folder = folder.path()});
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  check_exported(file, checkpoint);
  const Finished shown = trainer({"inspect", checkpoint.string()}, {.folder = folder.path()});
  CHECK(shown.exit_code == 0);
  CHECK_THAT(shown.out, ContainsSubstring("first.weight"));
  const Finished tested =
      trainer(probe("test", 1, 12, {"--ckpt_path", checkpoint.string()}), {.folder = folder.path()});
  INFO(tested.err);
  CHECK(tested.exit_code == 0);
  const Finished tuned =
      trainer(probe("fit", 1, 12, {"--pretrained.path", checkpoint.string(), "--trainer.max_steps", "1"}),
              {.folder = folder.path()});
  INFO(tuned.err);
  CHECK(tuned.exit_code == 0);
}

TEST_CASE("sharded checkpoints: a rank that cannot write its part fails the save on all ranks") {
  const std::string async = GENERATE("true", "false"), on_error = GENERATE("continue", "stop");
  const TemporaryFolder folder;
  const auto runs =
      fit(folder.path(), 2,
          kLength + sharded("parameters") +
              Arguments{"--trainer.async_checkpoint", async, "--trainer.on_save_error", on_error,
                        "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "5",
                        "--trainer.callbacks+=ProbeSaves", "--trainer.callbacks.file_limit_step", "12"});
  CAPTURE(async, on_error);
  CHECK(all_exit(runs, on_error == "stop" ? 4 : 0));
  CHECK(says(runs[0].err, "File too large"));
  CHECK(says(runs[0].err, "This was rank 1."));
  // What was saved before stays, and nothing of the others.
  const fs::path checkpoints = last_checkpoint(folder.path()).parent_path();
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    CAPTURE(entry.path());
    CHECK(entry.path().filename().string().front() != '.');
    CHECK(fulgur::verify_checkpoint(entry.path()).ok());
  }
  CHECK(fulgur::summarize_checkpoint(last_checkpoint(folder.path())).global_step <= 12);
}

TEST_CASE("sharded checkpoints: what all ranks have written is published during a validation") {
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2,
                        kLength + sharded("parameters") +
                            Arguments{"--trainer.agree_every", "1", "--trainer.num_sanity_val_steps", "0",
                                      "--data.num_eval", "96", "--trainer.val_check_interval", "4",
                                      "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps",
                                      "3", "--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.eval_sleep_ms",
                                      "100", "--model.trouble", "throw_in_validation", "--model.trouble_step", "7"});
  for (const Finished& run : runs) CHECK(run.exit_code != 0);
  const auto checkpoints = fulgur::list_checkpoints(run_folder(folder.path()) / "checkpoints");
  REQUIRE_FALSE(checkpoints.empty());
  CHECK(checkpoints.front().global_step == 3);
}

TEST_CASE("sharded checkpoints: a buffer that is not finite on another rank does not matter, as in a full save") {
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2,
                        kLength + sharded("gradients") +
                            Arguments{"--trainer.max_steps", "5", "--model.norm", "true", "--model.trouble",
                                      "nan_buffer", "--model.trouble_rank", "1", "--model.trouble_step", "4"});
  CHECK(all_exit(runs, 0));
  CHECK(fulgur::summarize_checkpoint(last_checkpoint(folder.path())).global_step == 5);
}

TEST_CASE("sharded checkpoints: weights that are not finite on one rank are not saved") {
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2,
                        kLength + sharded("parameters") +
                            Arguments{"--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps",
                                      "5", "--trainer.callbacks+=ProbeSaves", "--trainer.callbacks.nan_step", "10"});
  for (const Finished& run : runs) {
    INFO(run.err);
    CHECK(run.exit_code != 0);
  }
  const std::string& err = runs[0].err;
  CHECK(std::ranges::any_of(
      std::vector{"first.weight", "first.bias", "last.weight", "last.bias"},
      [&](const char* name) { return says(err, cat("is not written: '", name, "' is not finite")); }));
  CHECK(fulgur::summarize_checkpoint(last_checkpoint(folder.path())).global_step == 5);
}

TEST_CASE("sharded checkpoints: a writer of a user's own is refused") {
  const TemporaryFolder folder;
  const auto runs =
      fit(folder.path(), 2, kLength + sharded("optimizer") + Arguments{"--trainer.checkpoint_writer", "ProbeWriter"});
  for (const Finished& run : runs) {
    CHECK(run.exit_code == 2);
    CHECK_THAT(run.err, ContainsSubstring("state_dict_type: full"));
  }
}

TEST_CASE("sharded checkpoints: on two GPUs, the same content as a full checkpoint, over NCCL", "[gpu]") {
  require_gpus(2);
  const TemporaryFolder full, parts;
  const Arguments options = kLength + sharded("parameters") + Arguments{"--trainer.accelerator", "cuda"};
  REQUIRE(all_exit(fit(parts.path(), 2, options), 0));
  REQUIRE(all_exit(fit(full.path(), 2, options + Arguments{"--trainer.strategy.state_dict_type", "full"}), 0));
  CHECK(same_content(last_checkpoint(full.path()), last_checkpoint(parts.path())));
}

}  // namespace sharded_checkpoints_test
