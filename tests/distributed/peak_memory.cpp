#include "peak_memory.h"

#include <catch2/catch_test_macros.hpp>
#include <fstream>

#include "support/temporary_folder.h"

namespace fulgur::test {

double peak_without_steps(int ranks, const Arguments& more) {
  const TemporaryFolder folder;
  const std::string text = (folder.path() / "text.txt").string();
  std::ofstream(text) << std::string(20000, 'a');
  const Arguments model{"fit", "--model",        "GPT", "--model.n_layer",
                        "16",  "--model.n_embd", "512", "--model.vocab_size",
                        "256", "--optimizer",    "SGD"};
  const Arguments data{"--data", "TextDataModule", "--data.path", text, "--data.tokens", "byte"};
  const Arguments run_options{"--trainer.accelerator",
                              "cpu",
                              "--trainer.devices",
                              std::to_string(ranks),
                              "--trainer.max_steps",
                              "0",
                              "--trainer.default_root_dir",
                              folder.path().string(),
                              "--trainer.num_sanity_val_steps",
                              "0",
                              "--trainer.enable_checkpointing",
                              "false"};
  const Finished run =
      trainer(model + data + run_options + more, {.folder = folder.path(),
                                                  .environment = {"OMP_NUM_THREADS=1"},
                                                  // Not a fork of a process whose malloc has adapted to other blocks.
                                                  .address_space_mb = 1 << 20});
  const std::string output = run.out + run.err;
  INFO(output);
  REQUIRE(run.exit_code == 0);
  const std::string_view before = "peak memory: cpu ";
  const size_t at = output.find(before);
  REQUIRE(at != std::string::npos);
  size_t number = 0;
  const std::string peak = output.substr(at + before.size());
  const double value = std::stod(peak, &number);
  return peak.compare(number, 4, " GiB") == 0 ? value * 1024 : value;
}

}  // namespace fulgur::test
