// Memory of a device that ends. The limit is the simulator's.
#include "ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdlib>

#include "support/gpu.h"

namespace memory_gpu_test {

using namespace fulgur::test;

namespace {

/// A fit of an MLP on a GPU, or on several, each with `mebibytes` of memory.
Finished fit_in(int mebibytes, const TemporaryFolder& folder, const std::vector<std::string>& more) {
  std::vector<std::string> all{"fit",
                               "--model",
                               "MlpClassifier",
                               "--model.in_features",
                               "16",
                               "--model.num_classes",
                               "4",
                               "--data",
                               "SyntheticDataModule",
                               "--data.num_classes",
                               "4",
                               "--data.shape",
                               "[16]",
                               "--optimizer",
                               "AdamW",
                               "--trainer.accelerator",
                               "cuda",
                               "--trainer.max_epochs",
                               "2",
                               "--trainer.num_sanity_val_steps",
                               "0"};
  all.insert(all.end(), more.begin(), more.end());
  return trainer(all, {.folder = folder.path(),
                       .environment = {"SIMULATED_CUDA_MEMORY=" + std::to_string(int64_t{mebibytes} << 20)}});
}

void require_a_limit() {
  if (std::getenv("SIMULATED_CUDA_SCHEDULE") == nullptr) SKIP("needs a simulated GPU, whose memory can be limited");
}

}  // namespace

TEST_CASE("on a GPU, recorded steps make room for an epoch's short last batch and for a validation", "[gpu]") {
  require_gpus(1);
  require_a_limit();
  const TemporaryFolder folder;
  // A batch needs 134 MiB, and a recorded step keeps 98 MiB of it.
  const Finished run = fit_in(192, folder,
                              {"--model.hidden", "[16384]", "--data.batch_size", "512", "--data.num_train", "1792",
                               "--data.num_val", "1400", "--trainer.capture", "true", "--trainer.max_epochs", "4"});
  INFO(run.err << run.out);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "the steps are recorded again afterwards"));
  CHECK_FALSE(says(run.err, "training continues with eager steps"));
}

TEST_CASE("on two GPUs, memory that ends in any part of a step of ddp is reported as such", "[gpu]") {
  require_gpus(2);
  require_a_limit();
  // In training_step, in the buckets, in the optimizer's first step, and in a later one.
  const int mebibytes = GENERATE(96, 112, 128, 160);
  const TemporaryFolder folder;
  const Finished run = fit_in(mebibytes, folder,
                              {"--model.hidden", "[65536, 64]", "--data.batch_size", "8", "--data.num_train", "256",
                               "--data.num_val", "0", "--trainer.strategy", "ddp", "--trainer.devices", "2"});
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "error: out of memory: tensors hold "));
  CHECK(says(run.err, "to use less memory: "));
}

TEST_CASE("on four GPUs, memory that ends when a mesh gathers all parameters is reported as such", "[gpu][bytes]") {
  require_gpus(4);
  require_a_limit();
  const TemporaryFolder folder;
  // Of 32 matrices of 4 MiB, a rank has a quarter, and their gradients in a step.
  std::string hidden = "[1024";
  for (int i = 0; i < 32; ++i) hidden += ", 1024";
  hidden += "]";
  const auto fit = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"--model.hidden",
                                 hidden,
                                 "--optimizer",
                                 "SGD",
                                 "--optimizer.lr",
                                 "0.1",
                                 "--data.batch_size",
                                 "8",
                                 "--data.num_train",
                                 "16",
                                 "--data.num_val",
                                 "16",
                                 "--trainer.strategy",
                                 "mesh",
                                 "--trainer.strategy.mesh.pipeline",
                                 "4",
                                 "--trainer.strategy.state_dict_type",
                                 "sharded",
                                 "--trainer.devices",
                                 "4"};
    all.insert(all.end(), more.begin(), more.end());
    return fit_in(150, folder, all);
  };
  const Finished whole = fit({});
  INFO(whole.err);
  CHECK(whole.exit_code == 1);
  CHECK(says(whole.err, "gathered all parameters, for an evaluation or a save: set"));
  CHECK_FALSE(says(whole.err, "auto_micro_batch: true, or"));
  const Finished units = fit({"--trainer.strategy.evaluation", "units", "--trainer.strategy.units", "[layers.*]"});
  INFO(units.err);
  CHECK(units.exit_code == 0);
}

TEST_CASE("on GPUs with too little memory for a batch, auto_micro_batch trains with parts of it", "[gpu]") {
  const int gpus = GENERATE(1, 2);
  require_gpus(gpus);
  require_a_limit();
  const TemporaryFolder folder;
  // A step of 512 samples needs about 134 MiB.
  const auto fit = [&](const char* micro) {
    std::vector<std::string> more{"--model.hidden",
                                  "[16384]",
                                  "--data.batch_size",
                                  "512",
                                  "--data.num_train",
                                  "4096",
                                  "--data.num_val",
                                  "0",
                                  "--trainer.devices",
                                  std::to_string(gpus),
                                  "--trainer.auto_micro_batch",
                                  micro};
    if (gpus > 1) more.insert(more.end(), {"--trainer.strategy", "ddp"});
    return fit_in(100, folder, more);
  };
  const Finished run = fit("true");
  INFO(run.err << run.out);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "ran out of memory with 512 samples"));
  CHECK(fit("false").exit_code == 1);
}

TEST_CASE("on two GPUs, tune batch_size finds the greatest batch that fits on both", "[gpu]") {
  require_gpus(2);
  require_a_limit();
  const TemporaryFolder folder;
  const auto arguments = [](std::vector<std::string> first) {
    first.insert(first.end(), {"--model",
                               "MlpClassifier",
                               "--model.in_features",
                               "16",
                               "--model.num_classes",
                               "4",
                               "--model.hidden",
                               "[16384]",
                               "--data",
                               "SyntheticDataModule",
                               "--data.num_classes",
                               "4",
                               "--data.shape",
                               "[16]",
                               "--data.num_train",
                               "16384",
                               "--data.num_val",
                               "64",
                               "--optimizer",
                               "AdamW",
                               "--trainer.accelerator",
                               "cuda",
                               "--trainer.strategy",
                               "ddp",
                               "--trainer.devices",
                               "2",
                               "--trainer.num_sanity_val_steps",
                               "0"});
    return first;
  };
  const Start start{.folder = folder.path(), .environment = {"SIMULATED_CUDA_MEMORY=" + std::to_string(160 << 20)}};
  const Finished found = trainer(arguments({"tune", "batch_size", "--init", "64", "--steps_per_trial", "2"}), start);
  INFO(found.out << found.err);
  REQUIRE(found.exit_code == 0);
  CHECK(says(found.out, "out of memory"));
  const std::string mark = "--data.batch_size=";
  const size_t at = found.out.find(mark) + mark.size();
  const std::string size = found.out.substr(at, found.out.find('\n', at) - at);
  const auto fit = [&](const std::string& batch) {
    return trainer(arguments({"fit", "--data.batch_size", batch, "--trainer.max_steps", "2"}), start).exit_code;
  };
  CHECK(fit(size) == 0);
  CHECK(fit(std::to_string(4 * std::stoll(size))) != 0);
}

}  // namespace memory_gpu_test
