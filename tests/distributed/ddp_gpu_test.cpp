// F53: what goes wrong with GPUs ends the run in bounded time, with its reason.
#include "ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <set>
#include <sstream>

#include "support/gpu.h"

namespace ddp_gpu_test {

using namespace fulgur::test;

namespace {

std::vector<std::string> on_cuda(int world, const std::vector<std::string>& more) {
  std::vector<std::string> all{"--trainer.accelerator", "cuda", "--trainer.max_steps", "20"};
  all.insert(all.end(), more.begin(), more.end());
  return probe("fit", world, 12, all);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("F53: without a visible GPU, ranks that need one are not started") {
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
  CHECK(launched.exit_code == 2);
  CHECK(says(launched.err, "devices were requested; this machine has " + std::to_string(there) +
                               (there == 1 ? " cuda device: 0 (" : " cuda devices: 0 (")));
  CHECK(says(launched.err, there == 1 ? std::string("Set trainer.devices to 1 or [0]")
                                      : "Set trainer.devices to a number up to " + std::to_string(there)));
  // Started by others, the rank that is too many says so.
  const int ranks = static_cast<int>(there) + 1;
  const auto runs = run_ranks({.count = ranks, .folder = folder.path(), .started = {ranks - 1}},
                              on_cuda(ranks, {"--trainer.devices", "auto"}));
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[0].err, "has no GPU: "));
}

TEST_CASE("on a GPU, a missing device is refused by all strategies in the same way, as a number or an index", "[gpu]") {
  require_gpus(1);
  const std::string strategy = GENERATE("single_device", "ddp", "dp", "model_parallel");
  const std::string devices = GENERATE("99", "[98]");
  const TemporaryFolder folder;
  const Finished run =
      trainer(on_cuda(1, {"--trainer.strategy", strategy, "--trainer.devices", devices}), {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 2);
  CHECK(says(run.err, "error: [trainer.devices] "));
  CHECK(says(run.err, "; this machine has "));
  CHECK(says(run.err, "or to -1 for all"));
}

TEST_CASE("on a GPU, a kernel's assertion ends the run cleanly, and what was saved is complete", "[gpu]") {
  require_gpus(1);
  const std::string captures = GENERATE("false", "true");
  const std::string step = GENERATE("2", "3");
  const TemporaryFolder folder;
  // Weights that are large enough to be copied while the next step runs; a save is under way when the kernel fails.
  const Finished run =
      trainer(on_cuda(1, {"--model.hidden", "70000", "--model.trouble", "device_assert", "--model.trouble_rank", "0",
                          "--model.trouble_step", step, "--trainer.capture", captures, "--data.num_workers", "2",
                          "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "1",
                          "--trainer.callbacks.save_last", "true"}),
              {.folder = folder.path()});
  INFO(run.err << run.out);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "the run failed in train"));
  CHECK(says(run.err, "error: CUDA error: device-side assert triggered"));
  const auto checkpoints = run_folder(folder.path()) / "checkpoints";
  const auto last = checkpoints / "last.ckpt";
  REQUIRE(std::filesystem::is_directory(last));
  const Finished read = trainer({"inspect", last.string()}, {.folder = folder.path()});
  CHECK(read.exit_code == 0);
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints))
    CHECK(entry.path().extension() == ".ckpt");  // no half one
}

TEST_CASE("on a GPU, a kernel's assertion in an evaluation ends the run cleanly", "[gpu]") {
  require_gpus(1);
  const std::vector<std::string> more = GENERATE(
      std::vector<std::string>{"fit"},
      std::vector<std::string>{"fit", "--trainer.num_sanity_val_steps", "0", "--trainer.validate_first", "true"},
      std::vector<std::string>{"validate"});
  const TemporaryFolder folder;
  // The labels are out of range for the model.
  write_text(folder / "c.yaml",
             "seed_everything: 1\n"
             "trainer: {accelerator: cuda, devices: 1, max_epochs: 1}\n"
             "model: {class_path: MlpClassifier, init_args: {in_features: 64, hidden: [8], num_classes: 4}}\n"
             "data: {class_path: SyntheticDataModule, init_args: {num_train: 120, num_val: 33, num_classes: 10, shape: "
             "[64], batch_size: 8}}\n"
             "optimizer: {class_path: SGD, init_args: {lr: 0.1}}\n");
  std::vector<std::string> arguments = more;
  arguments.insert(arguments.end(), {"-c", "c.yaml"});
  const Finished run = trainer(arguments, {.folder = folder.path()});
  CAPTURE(arguments);
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "error: CUDA error: device-side assert triggered"));
  if (more.front() != "fit") return;
  CHECK(std::filesystem::exists(run_folder(folder.path()) / "failed.json"));
  CHECK_FALSE(std::filesystem::exists(run_folder(folder.path()) / "run.lock"));
}

TEST_CASE("on two GPUs, a kernel's assertion ends a run whose layers are placed on them with 1", "[gpu]") {
  require_gpus(2);
  const TemporaryFolder folder;
  const Finished run =
      trainer(on_cuda(2, {"--trainer.strategy", "model_parallel", "--trainer.devices", "2", "--model.spread", "true",
                          "--model.trouble", "device_assert", "--model.trouble_rank", "0"}),
              {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "device-side assert"));
}

TEST_CASE("on a GPU, running out of memory is reported with its place, the device's counts and what to do", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const Finished run =
      trainer(on_cuda(1, {"--model.trouble", "out_of_memory", "--model.trouble_rank", "0"}), {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "the run failed in train, epoch 0, batch 3, step 3, x [12, 5] Float"));
  CHECK(says(run.err, ", in training_step"));
  CHECK(says(run.err, "out of memory: tensors hold "));
  CHECK(says(run.err, " MiB of cuda:0 (peak: "));
  CHECK(says(run.err, "accumulate_grad_batches"));
  CHECK(says(run.err, "error: CUDA out of memory. Tried to allocate"));
}

TEST_CASE("F53: on a GPU, a kernel's assertion ends the run with its message", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  // Or an exchange over NCCL is the first to notice it.
  const std::string trouble = GENERATE("device_assert", "device_assert_in_exchange");
  const auto begin = std::chrono::steady_clock::now();
  const Finished run = trainer(
      on_cuda(1, {"--trainer.strategy", "ddp", "--trainer.devices", "1", "--trainer.strategy.process_group_backend",
                  "nccl", "--model.trouble", trouble, "--model.trouble_rank", "0"}),
      {.folder = folder.path()});
  CHECK(seconds_since(begin) < 90);
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "device-side assert"));
}

TEST_CASE(
    "F53: on two GPUs, a rank that is killed or stopped while the other waits in an exchange over NCCL ends both in "
    "time",
    "[gpu][ends]") {
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

TEST_CASE("on two GPUs, captured steps exchange gradients as eager ones do, bit for bit", "[gpu]") {
  require_gpus(2);
  using Arguments = std::vector<std::string>;
  // Gradients alone; in windows, in which they are exchanged once; with buffers of a layer; scaled, and clipped.
  const auto more =
      GENERATE(Arguments{}, Arguments{"--trainer.accumulate_grad_batches", "2"}, Arguments{"--model.norm", "true"},
               Arguments{"--trainer.precision", "16-mixed", "--trainer.gradient_clip_val", "0.5"});
  const auto fit = [&](const TemporaryFolder& folder, const std::string& captures) {
    Arguments all{"--trainer.devices", "2", "--trainer.capture", captures};
    all.insert(all.end(), more.begin(), more.end());
    return trainer(on_cuda(2, all), {.folder = folder.path()});
  };
  const TemporaryFolder eager, captured;
  const Finished plain = fit(eager, "false"), run = fit(captured, "true");
  INFO(run.err << run.out);
  REQUIRE(plain.exit_code == 0);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.out + run.err, "batches were captured"));
  CHECK(
      says(run.out + run.err, "gradients: nccl, which chooses its route (NCCL_SOCKET_IFNAME) · the rest: gloo over "));
  CHECK_FALSE(says(run.out + run.err, "not captured"));
  CHECK(same_bits(last_checkpoint(eager.path()), last_checkpoint(captured.path())));
}

TEST_CASE("on two GPUs, a rank that is killed or stopped between captured steps ends both in time", "[gpu][ends]") {
  require_gpus(2);
  const std::string trouble = GENERATE("kill", "stop");
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Finished run =
      trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.capture", "true", "--trainer.strategy.timeout_s", "10",
                          "--model.trouble", trouble + "_between", "--model.trouble_step", "9"}),
              {.folder = folder.path()});
  CHECK(seconds_since(begin) < 120);
  INFO(run.err);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, trouble == "kill" ? "rank 1 of 2 was ended by signal 9" : "did not answer"));
}

TEST_CASE("on two GPUs, an exception after the launch of a step for which another rank does not come ends both in time",
          "[gpu][ends]") {
  require_gpus(2);
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Finished run =
      trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.capture", "true", "--trainer.strategy.timeout_s", "10",
                          "--model.trouble", "stop_and_throw", "--model.trouble_step", "9"}),
              {.folder = folder.path()});
  // What handles the exception waits for the device.
  CHECK(seconds_since(begin) < 120);
  INFO(run.err);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(run.exit_code != 0);
  CHECK(says(run.err, "trouble between steps, as asked for"));
}

TEST_CASE("on two GPUs, a rank that hangs between captured steps is reported with its step", "[gpu][ends]") {
  require_gpus(2);
  const TemporaryFolder folder;
  const Finished run =
      trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.capture", "true", "--trainer.strategy.timeout_s", "10",
                          "--model.trouble", "loop_between", "--model.trouble_step", "13"}),
              {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 5);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(says(run.err, "rank 1: between steps at step 13, reported"));
  CHECK_FALSE(says(run.err, "at step 12"));
}

TEST_CASE("on two GPUs, replicas are compared after captured steps as after eager ones", "[gpu]") {
  require_gpus(2);
  const std::string captures = GENERATE("true", "false");
  const auto fit = [&](const TemporaryFolder& folder, const std::string& trouble) {
    return trainer(
        on_cuda(2, {"--trainer.devices", "2", "--trainer.capture", captures, "--trainer.strategy.check_replicas_every",
                    "4", "--model.trouble", trouble, "--model.trouble_step", "13"}),
        {.folder = folder.path()});
  };
  const TemporaryFolder quiet, broken;
  const Finished whole = fit(quiet, "none"), run = fit(broken, "flip_between");
  INFO(whole.err << whole.out << run.err);
  CHECK(whole.exit_code == 0);
  CHECK(says(whole.out + whole.err, "the step is captured") == (captures == "true"));
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "after step 16 these differ from rank 0's: the weights 'last.weight' of rank 1"));
}

TEST_CASE("on two GPUs, NaN on one rank in a captured step is acted upon as in an eager one", "[gpu]") {
  require_gpus(2);
  const std::string policy = GENERATE("skip", "stop", "raise");
  CAPTURE(policy);
  const auto fit = [&](const TemporaryFolder& folder, const std::string& captures) {
    return trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.capture", captures, "--trainer.on_nonfinite",
                               policy, "--model.trouble", "nan_between", "--model.trouble_step", "13"}),
                   {.folder = folder.path()});
  };
  const TemporaryFolder eager, captured;
  const Finished plain = fit(eager, "false"), run = fit(captured, "true");
  INFO(plain.err << run.err << run.out);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(run.exit_code == plain.exit_code);
  CHECK((run.exit_code == 0) == (policy == "skip"));
  // With `raise` both ranks write, in any order.
  const auto noted = [](const TemporaryFolder& folder) {
    std::istringstream file(read_text(run_folder(folder.path()) / "nonfinite.jsonl"));
    std::multiset<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  };
  CHECK_FALSE(noted(eager).empty());
  CHECK(noted(captured) == noted(eager));
  if (policy == "skip") CHECK(same_bits(last_checkpoint(eager.path()), last_checkpoint(captured.path())));
}

TEST_CASE("on two GPUs, an option of ddp that keeps steps from being captured is named, with what to set", "[gpu]") {
  require_gpus(2);
  using Strings = std::vector<std::string>;
  const Strings tried =
      GENERATE(Strings{"static_graph", "true", "ddp's static_graph is true", "; set it to false"},
               Strings{"find_unused_parameters", "true", "ddp's find_unused_parameters is true", "; set it to false"},
               Strings{"gradient_as_bucket_view", "true", "ddp's gradient_as_bucket_view is true", "; set it to false"},
               Strings{"compression", "bf16", "ddp's compression is bf16", "; set it to none"},
               Strings{"process_group_backend", "gloo", "over gloo", "; set its process_group_backend to nccl"});
  const TemporaryFolder folder;
  const Finished run = trainer(on_cuda(2, {"--trainer.devices", "2", "--trainer.capture", "true",
                                           "--trainer.strategy." + tried[0], tried[1], "--report", "report.json"}),
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "the steps are not captured: "));
  CHECK(says(run.err, tried[2]));
  CHECK(says(run.err, tried[3]));
  const std::string report = read_text(folder / "report.json");
  CHECK(says(report, "\"captured_batches\": 0"));
  CHECK(says(report, tried[2]));
}

}  // namespace ddp_gpu_test
