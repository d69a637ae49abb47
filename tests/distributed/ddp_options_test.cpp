#include "ranks.h"

#include "backend_rules.h"
#include "fulgur/core/errors.h"
#include "support/expect_error.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

using namespace fulgur::test;
using fulgur::detail::choose_backend;

namespace {

std::filesystem::path fit(const TemporaryFolder& folder, const std::vector<std::string>& more, int world = 2) {
  std::vector<std::string> arguments{"--trainer.max_steps", "20"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  REQUIRE(all_exit(run_ranks({.count = world, .folder = folder.path()}, probe("fit", world, 8, arguments)), 0));
  return last_checkpoint(folder.path());
}

size_t buckets(const std::filesystem::path& checkpoint) {
  const std::string text = read_text(checkpoint / "state.json");
  const size_t begin = text.find("\"buckets\"");
  REQUIRE(begin != std::string::npos);
  size_t count = 0;
  int depth = 0;
  for (size_t i = text.find('[', begin); i < text.size(); ++i) {
    if (text[i] == '[' && ++depth == 2) ++count;
    if (text[i] == ']' && --depth == 0) break;
  }
  return count;
}

}  // namespace

TEST_CASE("the backend: gloo for the CPU, nccl for GPUs, and reasons for what cannot be") {
  CHECK(choose_backend("auto", "cpu") == "gloo");
  CHECK(choose_backend("auto", "cuda") == "nccl");
  CHECK(choose_backend("gloo", "cpu") == "gloo");
  CHECK(choose_backend("gloo", "cuda") == "gloo");
  CHECK(choose_backend("nccl", "cuda") == "nccl");
  CHECK_THROWS_AS(choose_backend("nccl", "cpu"), fulgur::ConfigError);
  CHECK_THROWS_AS(choose_backend("mpi", "cpu"), fulgur::ConfigError);
  const TemporaryFolder folder;
  for (const char* backend : {"nccl", "mpi"}) {
    const auto runs = run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 8, {"--trainer.strategy.process_group_backend", backend}));
    CHECK(all_exit(runs, 2));
    CHECK(says(runs[0].err, backend));
  }
}

TEST_CASE("ddp: cluster_environment says where the place is looked for") {
  const TemporaryFolder folder;
  const auto elsewhere = run_ranks({.count = 2, .folder = folder.path(), .started = {0}}, probe("fit", 2, 8, {"--trainer.strategy.cluster_environment", "torchrun"}));
  CHECK(all_exit(elsewhere, 5));
  CHECK(says(elsewhere[0].err, "TORCHELASTIC_RUN_ID"));
  // As if nobody had started it, the process starts two of its own.
  const auto own = run_ranks({.count = 2, .folder = folder.path(), .started = {0}}, probe("fit", 2, 8, {"--trainer.strategy.cluster_environment", "launcher", "--trainer.max_steps", "1"}));
  CHECK(all_exit(own, 0));
  CHECK(says(own[0].err, "rank 0 of 2 (launcher)"));
}

TEST_CASE("ddp: gradients as views of the buckets are the same gradients") {
  const TemporaryFolder plain, views;
  CHECK(same_bits(fit(plain, {}), fit(views, {"--trainer.strategy.gradient_as_bucket_view", "true"})));
}

TEST_CASE("ddp: bucket_cap_mb cuts the gradients into buckets, which the checkpoint holds") {
  const TemporaryFolder one, many;
  const auto whole = fit(one, {}), cut = fit(many, {"--trainer.strategy.bucket_cap_mb", "0.0001"});
  CHECK(buckets(whole) == 1);
  CHECK(buckets(cut) > 1);
  CHECK(difference(whole, cut) < 1e-6);
}

TEST_CASE("ddp: compressed gradients lose digits and little else") {
  const TemporaryFolder plain, small;
  const char* kind = GENERATE("fp16", "bf16");
  const auto a = fit(plain, {}), b = fit(small, {"--trainer.strategy.compression", kind});
  CHECK_FALSE(same_bits(a, b));
  CHECK(difference(a, b) < 0.02);
}

TEST_CASE("ddp: a parameter without a gradient is named, and allowed where the config says so") {
  const TemporaryFolder folder, found, still;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 8, {"--model.spare", "true", "--trainer.max_steps", "3"}));
  CHECK(all_exit(runs, 5));
  for (const Finished& run : runs) CHECK(says(run.err, "these got none: spare"));
  fit(found, {"--model.spare", "true", "--trainer.strategy.find_unused_parameters", "true"});
  fit(still, {"--model.spare", "true", "--trainer.strategy.static_graph", "true"});
  CHECK(same_bits(last_checkpoint(found.path()), last_checkpoint(still.path())));
}

TEST_CASE("ddp: buffers are rank 0's before each forward, or each rank's own") {
  const TemporaryFolder shared, own;
  const auto a = fit(shared, {"--model.norm", "true"}), b = fit(own, {"--model.norm", "true", "--trainer.strategy.broadcast_buffers", "false"});
  // Batch norm in training uses no running statistics, so weights agree; rank 0 keeps its own statistics either way.
  CHECK(same_bits(a, b));
  // What rank 1 evaluates with is its own without it.
  const auto rows = [](const TemporaryFolder& folder) { return read_text(run_folder(folder.path()) / "metrics.jsonl"); };
  REQUIRE(says(rows(shared), "val_loss"));
  CHECK_FALSE(rows(shared) == rows(own));
}
