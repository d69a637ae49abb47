// ddp over NCCL between two GPUs: how runs end, and that its exchanges compute what Gloo's do.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "ranks.h"
#include "support/gpu.h"

namespace ddp_nccl_test {

using namespace fulgur::test;

namespace {

std::vector<std::string> on_gpus(const std::vector<std::string>& more) {
  std::vector<std::string> all =
      probe("fit", 2, 12,
            {"--trainer.accelerator", "cuda", "--trainer.max_steps", "20", "--trainer.strategy.timeout_s", "5"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Rank 1 fails in its fourth step. How rank 0 ends; rank 1 is ended then, if it has not been before.
Finished beside(const std::string& trouble) {
  const TemporaryFolder folder;
  const int port = free_port();
  std::vector<std::unique_ptr<Running>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(
        std::make_unique<Running>(on_gpus({"--model.trouble", trouble, "--trainer.callbacks+=ModelCheckpoint",
                                           "--trainer.callbacks.every_n_train_steps", "10"}),
                                  start_of_rank(rank, 2, port, folder.path())));
  const Finished ended = ranks[0]->wait();
  // The result of a failed exchange must not be kept.
  CHECK_FALSE(std::filesystem::exists(run_folder(folder.path()) / "checkpoints" / "last.ckpt"));
  return ended;
}

}  // namespace

TEST_CASE("ddp: on two GPUs, runs over NCCL that end well all end with 0", "[gpu][ends]") {
  require_gpus(2);
  // NCCL's threads use CUDA until they are stopped; if they were not, one run in three to eight ended with SIGABRT.
  for (int i = 0; i < 10; ++i) {
    CAPTURE(i);
    const TemporaryFolder folder;
    REQUIRE(all_exit(run_ranks({.count = 2, .folder = folder.path()}, on_gpus({})), 0));
  }
}

TEST_CASE("F53: on two GPUs, a rank that is lost to NCCL is named by the other, which ends with 5 in time",
          "[gpu][ends]") {
  require_gpus(2);
  const std::string trouble = GENERATE("kill", "stop", "loop");
  CAPTURE(trouble);
  const auto begin = std::chrono::steady_clock::now();
  const Finished ended = beside(trouble);
  INFO(ended.err);
  CHECK(seconds_since(begin) < 15);
  CHECK(ended.exit_code == 5);
  CHECK(says(ended.err, "another rank: "));
  CHECK(says(ended.err, "what the ranks did:"));
  CHECK(says(ended.err, "rank 1: "));
}

TEST_CASE("F53: on two GPUs, an exception of one rank ends it with its own code and the other with 5", "[gpu][ends]") {
  require_gpus(2);
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, on_gpus({"--model.trouble", "throw"}));
  CHECK(seconds_since(begin) < 15);
  INFO(runs[0].err << runs[1].err);
  CHECK(runs[0].exit_code == 5);
  CHECK(runs[1].exit_code == 1);
  CHECK(says(runs[1].err, "trouble in training_step, as asked for"));
}

TEST_CASE(
    "ddp: on two GPUs, what NCCL gathers, with gradients, and normalises over ranks trains as Gloo's on CPUs does",
    "[gpu]") {
  require_gpus(2);
  const std::string what = GENERATE("gathers", "norm");
  CAPTURE(what);
  const TemporaryFolder folder;
  const auto train = [&](const std::string& accelerator) {
    std::filesystem::create_directory(folder / accelerator);
    std::vector<std::string> arguments =
        on_gpus({"--model." + what, "true", "--trainer.sync_batchnorm", "true", "--trainer.accelerator", accelerator});
    REQUIRE(all_exit(run_ranks({.count = 2, .folder = folder / accelerator}, arguments), 0));
    return last_checkpoint(folder / accelerator);
  };
  CHECK(difference(train("cuda"), train("cpu")) < 1e-5);
}

TEST_CASE(
    "ddp: four GPUs over NCCL train as one process does on the same batches, to the last bits that a sum's order "
    "leaves",
    "[gpu]") {
  require_gpus(4);
  const TemporaryFolder folder;
  const auto train = [&](int world, const std::string& accelerator) {
    const auto place = folder / (accelerator + std::to_string(world));
    std::filesystem::create_directory(place);
    const std::vector<std::string> arguments =
        probe("fit", world, 12,
              {"--trainer.accelerator", accelerator, "--trainer.max_steps", "20",
               "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "3"});
    REQUIRE(all_exit(run_ranks({.count = world, .folder = place}, arguments), 0));
    return last_checkpoint(place);
  };
  const auto four = train(4, "cuda");
  CHECK(difference(four, train(1, "cuda")) < 1e-6);
  CHECK(difference(four, train(1, "cpu")) < 1e-6);
}

TEST_CASE("ddp: on two GPUs, a checkpoint costs no rank a wait for its device", "[gpu]") {
  require_gpus(2);
  if (std::getenv("SIMULATED_CUDA_SCHEDULE") == nullptr) SKIP("needs counts of a simulated GPU");
  const auto run = [](int every) {
    const TemporaryFolder folder;
    setenv("SIMULATED_CUDA_COUNTS", "1", 1);
    setenv("FULGUR_FAST_EXIT", "0", 1);  // the counts are printed by a destructor
    auto ranks = run_ranks({.count = 2, .folder = folder.path()},
                           on_gpus({"--trainer.log_every_n_steps", "1000", "--trainer.callbacks+=ModelCheckpoint",
                                    "--trainer.callbacks.every_n_train_steps", std::to_string(every)}));
    unsetenv("SIMULATED_CUDA_COUNTS");
    REQUIRE(all_exit(ranks, 0));
    return ranks;
  };
  // In "waits of the host: stream 8, device 1, …".
  const auto count = [](const std::string& text, const std::string& kind) {
    const size_t waits = text.find("waits of the host: ");
    REQUIRE(waits != std::string::npos);
    return std::stoll(text.substr(text.find(kind + " ", waits) + kind.size()));
  };
  const auto few = run(10), many = run(2);
  constexpr int64_t kMore = 20 / 2 - 20 / 10;
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(rank, few[rank].err, many[rank].err);
    CHECK(count(many[rank].err, "stream") == count(few[rank].err, "stream"));
    CHECK(count(many[rank].err, "device") == count(few[rank].err, "device"));
    // The running values of what the module logs. Waits for events are the writer's, and of a host that is too far
    // ahead.
    CHECK(count(many[rank].err, "pageable copy") <= count(few[rank].err, "pageable copy") + kMore);
  }
}

}  // namespace ddp_nccl_test
