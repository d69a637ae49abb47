// A named backend makes a group of one process: everything ddp does, with no other process to exchange with.
#include "ranks.h"

#include <catch2/catch_test_macros.hpp>

#include "support/gpu.h"

namespace ddp_group_of_one_test {

using namespace fulgur::test;

namespace {

std::filesystem::path fit(const std::filesystem::path& folder, std::vector<std::string> options,
                          const std::vector<std::string>& more, std::string* text = nullptr) {
  options.insert(options.end(), more.begin(), more.end());
  const Finished run = trainer(probe("fit", 1, 8, options), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  if (text) *text = run.err;
  return last_checkpoint(folder);
}

void compare_with_one_device(const std::string& accelerator, const std::string& backend) {
  CAPTURE(backend);
  const std::vector<std::string> ddp{
      "--trainer.strategy", "ddp", "--trainer.devices", "1", "--trainer.strategy.process_group_backend", backend};
  const TemporaryFolder alone, grouped, plain, synced;
  std::string text;
  const std::vector<std::string> options{"--trainer.accelerator",
                                         accelerator,
                                         "--trainer.max_epochs",
                                         "3",
                                         "--trainer.accumulate_grad_batches",
                                         "3",
                                         "--model.dropout",
                                         "0.2",
                                         "--model.norm",
                                         "true",
                                         "--optimizer",
                                         "AdamW",
                                         "--optimizer.lr",
                                         "0.01"};
  CHECK(same_bits(fit(alone.path(), options, {"--trainer.devices", "1"}), fit(grouped.path(), options, ddp, &text)));
  CHECK(says(text, std::string("rank 0 of 1 (none) · ") + (backend == "nccl" ? "gradients: nccl" : "gloo over")));
  CHECK((read_text(run_folder(alone.path()) / "metrics.jsonl") ==
         read_text(run_folder(grouped.path()) / "metrics.jsonl")));
  // Statistics that are exchanged come from other kernels, to the same values.
  std::vector<std::string> sync = ddp;
  sync.insert(sync.end(), {"--trainer.sync_batchnorm", "true"});
  CHECK(difference(fit(plain.path(), options, {"--trainer.devices", "1"}), fit(synced.path(), options, sync)) < 1e-4);
}

}  // namespace

TEST_CASE("ddp: a group of one that names Gloo trains to the bits of single_device") {
  compare_with_one_device("cpu", "gloo");
}

TEST_CASE("on a GPU, a group of one over NCCL, or over Gloo, trains to the bits of single_device", "[gpu]") {
  require_gpus(1);
  for (const char* backend : {"nccl", "gloo"}) compare_with_one_device("cuda", backend);
}

}  // namespace ddp_group_of_one_test
