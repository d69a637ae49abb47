// Activation checkpointing under c10d's Reducer, whose hooks run in the backward that recomputes.
#include <catch2/catch_test_macros.hpp>

#include "ranks.h"

namespace ddp_gpt_test {

using namespace fulgur::test;

TEST_CASE("ddp: a checkpointed GPT gives the bits of one that keeps its activations, and the weights of one process") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 17 * i % 11);
  write_text(folder / "text.txt", text);
  const auto arguments = [&](int world, const std::string& how) {
    return probe("fit", world, 8,
                 {"--model",
                  "GPT",
                  "--model.vocab_size",
                  "11",
                  "--model.block_size",
                  "16",
                  "--model.n_layer",
                  "4",
                  "--model.n_head",
                  "2",
                  "--model.n_embd",
                  "16",
                  "--model.activation_checkpointing",
                  how,
                  "--data",
                  "TextDataModule",
                  "--data.path",
                  (folder / "text.txt").string(),
                  "--data.block_size",
                  "16",
                  "--data.batch_size",
                  std::to_string(8 / world),
                  "--trainer.max_steps",
                  "12",
                  "--trainer.accumulate_grad_batches",
                  "2"});
  };
  const TemporaryFolder one;
  const Finished alone = trainer(arguments(1, "none"), {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(alone.err);
  REQUIRE(alone.exit_code == 0);
  const TemporaryFolder kept, recomputed, half, unused;
  const auto together = [&](const TemporaryFolder& root, const std::string& how,
                            const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = arguments(2, how);
    all.insert(all.end(), more.begin(), more.end());
    REQUIRE(all_exit(run_ranks({.count = 2, .folder = root.path()}, all), 0));
    return last_checkpoint(root.path());
  };
  const auto plain = together(kept, "none");
  CHECK(difference(last_checkpoint(one.path()), plain) < 1e-6);
  CHECK(same_bits(plain, together(recomputed, "all")));
  CHECK(same_bits(plain, together(half, "every_2")));
  CHECK(same_bits(plain, together(unused, "all", {"--trainer.strategy.find_unused_parameters", "true"})));
}

}  // namespace ddp_gpt_test
