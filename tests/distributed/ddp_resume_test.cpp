#include "ranks.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <csignal>

namespace ddp_resume_test {

using namespace fulgur::test;

namespace {

std::vector<Finished> fit(const std::filesystem::path& folder, int world, int64_t batch_size_of_all,
                          const std::vector<std::string>& more) {
  if (world == 1)
    return {
        trainer(probe("fit", 1, batch_size_of_all, more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
  return run_ranks({.count = world, .folder = folder}, probe("fit", world, batch_size_of_all, more));
}

std::vector<std::string> plus(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("ddp: a resume over as many ranks is exact, inside an accumulation window too") {
  const int world = GENERATE(2, 3);
  // After the first step LibTorch orders its buckets again.
  const std::string cut_at = GENERATE("1", "7");
  const std::string static_graph = cut_at == "7" ? "true" : "false";
  const std::vector<std::string> options{"--trainer.accumulate_grad_batches",
                                         "2",
                                         "--model.dropout",
                                         "0.2",
                                         "--model.norm",
                                         "true",
                                         "--optimizer",
                                         "AdamW",
                                         "--optimizer.lr",
                                         "0.01",
                                         "--trainer.strategy.bucket_cap_mb",
                                         "0.0001",
                                         "--trainer.strategy.static_graph",
                                         static_graph,
                                         "--data.num_train",
                                         "120"};
  const TemporaryFolder whole, parts;
  REQUIRE(all_exit(fit(whole.path(), world, 12, plus(options, {"--trainer.max_epochs", "3"})), 0));
  // The signal comes after a batch; where that is in a window, the window's gradients are part of what is saved.
  const auto cut = fit(
      parts.path(), world, 12,
      plus(options, {"--trainer.max_epochs", "3", "--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                     "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", cut_at}));
  REQUIRE(all_exit(cut, 75));
  REQUIRE(all_exit(fit(parts.path(), world, 12, plus(options, {"--trainer.max_epochs", "3", "--resume"})), 0));
  CHECK(same_bits(last_checkpoint(whole.path()), last_checkpoint(parts.path())));
  // The rows as well, to the last digit.
  CHECK(
      (read_text(run_folder(whole.path()) / "metrics.jsonl") == read_text(run_folder(parts.path()) / "metrics.jsonl")));
}

TEST_CASE("F17: a run continues over another number of ranks, each sample of the epoch once") {
  const TemporaryFolder whole, parts;
  const std::vector<std::string> options{"--data.num_train", "96", "--optimizer", "AdamW", "--optimizer.lr", "0.01"};
  REQUIRE(all_exit(fit(whole.path(), 1, 8, plus(options, {"--trainer.max_steps", "24"})), 0));
  REQUIRE(all_exit(fit(parts.path(), 2, 8, plus(options, {"--trainer.max_steps", "5"})), 0));
  for (const auto& [world, steps] : {std::pair{1, "14"}, std::pair{4, "24"}}) {
    const auto runs =
        fit(parts.path(), world, 8, plus(options, {"--trainer.max_steps", steps, "--resume", "--allow-config-change"}));
    REQUIRE(all_exit(runs, 0));
    CHECK(says(runs[0].err, "processes"));
  }
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(parts.path())) < 1e-6);
}

TEST_CASE("F32 under ddp: SIGTERM to one rank or to all ends every rank with a checkpoint at the same step") {
  const int rank = GENERATE(0, 1);
  const TemporaryFolder folder;
  const auto runs = run_ranks(
      {.count = 2, .folder = folder.path()},
      probe("fit", 2, 8,
            {"--trainer.max_epochs", "-1", "--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank",
             std::to_string(rank), "--trainer.callbacks.signal_step", "10", "--trainer.callbacks.sleep_ms", "2"}));
  CHECK(all_exit(runs, 75));
  CHECK(std::filesystem::exists(last_checkpoint(folder.path())));
}

TEST_CASE(
    "F32 under ddp: SIGTERM to one rank, wherever that is, ends all with a checkpoint from which they reach the bits "
    "of an undisturbed run") {
  const std::vector<std::string> options{"--trainer.max_epochs",
                                         "2",
                                         "--trainer.accumulate_grad_batches",
                                         "2",
                                         "--trainer.agree_every",
                                         "1",
                                         "--data.num_train",
                                         "48",
                                         "--model.dropout",
                                         "0.2"};
  const TemporaryFolder whole;
  REQUIRE(all_exit(fit(whole.path(), 2, 8, options), 0));
  const auto expected = last_checkpoint(whole.path());
  for (const char* place : {"train_start", "epoch_start", "second_epoch_start", "batch_start", "before_backward",
                            "after_backward", "before_step", "before_zero_grad", "batch_end", "validation_start",
                            "validation_batch", "validation_end", "epoch_end", "save", "train_end"}) {
    CAPTURE(place);
    const TemporaryFolder folder;
    const bool early = std::string_view(place).ends_with("start") && std::string_view(place) != "second_epoch_start" &&
                       std::string_view(place) != "validation_start";
    const auto runs = fit(folder.path(), 2, 8,
                          plus(options, {"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank",
                                         place[0] == 'b' ? "0" : "1", "--trainer.callbacks.signal_step",
                                         early ? "0" : "1", "--trainer.callbacks.signal_place", place}));
    // Before the first step there is nothing to save.
    if (place == std::string_view("train_start")) {
      CHECK(all_exit(runs, 143));
      continue;
    }
    // One that comes after the last step finds nothing left to do.
    const bool done = all_exit(runs, 0);
    CHECK((done ? std::string_view(place) == "train_end" || std::string_view(place) == "save" : all_exit(runs, 75)));
    if (!done) CHECK(all_exit(fit(folder.path(), 2, 8, plus(options, {"--resume"})), 0));
    CHECK(same_bits(expected, last_checkpoint(folder.path())));
  }
}

TEST_CASE("ddp: SIGUSR1 to one rank saves, and training continues") {
  const TemporaryFolder folder;
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()},
                probe("fit", 2, 8,
                      {"--trainer.max_steps", "40", "--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                       "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", "10",
                       "--trainer.callbacks.signal", std::to_string(SIGUSR1)}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "SIGUSR1: saved, training continues"));
  CHECK(says(runs[0].err, "40 steps"));
}

TEST_CASE("ddp: what many ranks have trained, one tests as any other") {
  const TemporaryFolder folder;
  REQUIRE(all_exit(fit(folder.path(), 2, 8, {"--trainer.max_steps", "4"}), 0));
  const Finished run =
      trainer(probe("test", 1, 8, {"--ckpt_path", last_checkpoint(folder.path()).string()}), {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.out, "test_loss"));
}

}  // namespace ddp_resume_test
