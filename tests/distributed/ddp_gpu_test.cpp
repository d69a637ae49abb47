// F53: what goes wrong with GPUs ends the run in bounded time, with its reason.
#include "ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>

#include "support/gpu.h"

using namespace fulgur::test;

namespace {

std::vector<std::string> on_cuda(int world, const std::vector<std::string>& more) {
  std::vector<std::string> all =
      probe("fit", world, 12, {"--trainer.accelerator", "cuda", "--trainer.max_steps", "20"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("F53: with no GPU to be seen, ranks that need one are not started") {
  const TemporaryFolder folder;
  const Finished run = trainer(on_cuda(2, {}), {.folder = folder.path(), .environment = {"CUDA_VISIBLE_DEVICES="}});
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "'cuda' is not available: 0 GPUs are visible"));
  CHECK_FALSE(says(run.err, "rank 1"));
}

TEST_CASE("F53: on a GPU, more ranks than GPUs are refused at the start", "[gpu]") {
  const int64_t there = require_gpus(1).device_count();
  const TemporaryFolder folder;
  const Finished launched =
      trainer(on_cuda(2, {"--trainer.devices", std::to_string(there + 1)}), {.folder = folder.path()});
  CHECK(launched.exit_code == 5);
  CHECK(says(launched.err, "devices were asked for"));
  // Started by others, the rank that is too many says so.
  const int ranks = static_cast<int>(there) + 1;
  const auto runs = run_ranks({.count = ranks, .folder = folder.path(), .started = {ranks - 1}},
                              on_cuda(ranks, {"--trainer.devices", "auto"}));
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[0].err, "has no GPU of its own"));
}

TEST_CASE("F53: on a GPU, a kernel's assertion ends the run with its message", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Finished run = trainer(
      on_cuda(1, {"--trainer.strategy", "ddp", "--trainer.devices", "1", "--trainer.strategy.process_group_backend",
                  "nccl", "--model.trouble", "device_assert", "--model.trouble_rank", "0"}),
      {.folder = folder.path()});
  CHECK(seconds_since(begin) < 90);
  INFO(run.err);
  CHECK(run.exit_code != 0);
  CHECK(says(run.err, "device-side assert"));
}

TEST_CASE(
    "F53: on two GPUs, a rank that is killed or stopped while the other waits in an exchange over NCCL ends both in "
    "time",
    "[gpu]") {
  require_gpus(2);
  const std::string trouble = GENERATE("kill", "stop");
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Finished run =
      trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.strategy.timeout_s", "10", "--model.trouble", trouble}),
              {.folder = folder.path()});
  CHECK(seconds_since(begin) < 120);
  INFO(run.err);
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, trouble == "kill" ? "rank 1 of 2 was ended by signal 9" : "did not answer"));
}

TEST_CASE("on two GPUs, captured steps exchange gradients as eager ones do, to the bit", "[gpu]") {
  require_gpus(2);
  using Arguments = std::vector<std::string>;
  // Gradients alone; in windows, in which they are exchanged once; with buffers of a layer; scaled, and clipped.
  const auto more =
      GENERATE(Arguments{}, Arguments{"--trainer.accumulate_grad_batches", "2"}, Arguments{"--model.norm", "true"},
               Arguments{"--trainer.precision", "16-mixed", "--trainer.gradient_clip_val", "0.5"});
  const auto fit = [&](const TemporaryFolder& folder, const std::string& captures) {
    Arguments all{"--trainer.devices", "2", "--trainer.cuda_graph", captures};
    all.insert(all.end(), more.begin(), more.end());
    return trainer(on_cuda(2, all), {.folder = folder.path()});
  };
  const TemporaryFolder eager, captured;
  const Finished plain = fit(eager, "false"), run = fit(captured, "true");
  INFO(run.err << run.out);
  REQUIRE(plain.exit_code == 0);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.out + run.err, "steps were made by the captured one"));
  CHECK_FALSE(says(run.out + run.err, "not captured"));
  CHECK(same_bits(last_checkpoint(eager.path()), last_checkpoint(captured.path())));
}

TEST_CASE("on two GPUs, a rank that is killed or stopped between captured steps ends both in time", "[gpu]") {
  require_gpus(2);
  const std::string trouble = GENERATE("kill", "stop");
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Finished run =
      trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.cuda_graph", "true", "--trainer.strategy.timeout_s",
                          "10", "--model.trouble", trouble + "_between", "--model.trouble_step", "9"}),
              {.folder = folder.path()});
  CHECK(seconds_since(begin) < 120);
  INFO(run.err);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, trouble == "kill" ? "rank 1 of 2 was ended by signal 9" : "did not answer"));
}
