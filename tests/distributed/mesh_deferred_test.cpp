// mesh with modules that are created without memory for their parameters.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "checkpoint_contents.h"
#include "mesh_runs.h"
#include "peak_memory.h"
#include "support/gpu.h"

namespace mesh_deferred_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const Arguments kWhole{"--trainer.strategy.deferred_init", "false"};
const Arguments kMasters{"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true"};

Mesh with(Mesh mesh, const Arguments& more) {
  mesh.more = mesh.more + more;
  return mesh;
}

// The embedding, which stages share with the output layer, and matrices of each block have more than 1 MiB.
Arguments large_gpt(const TemporaryFolder& folder, const Arguments& more) {
  return mesh_gpt(folder, Arguments{"--model.n_embd", "256", "--model.n_layer", "2", "--model.vocab_size", "1100",
                                    "--model.dropout", "0.2", "--trainer.log_every_n_steps", "1"} +
                              more);
}

}  // namespace

TEST_CASE("mesh deferred: losses, weights and states have the bits of modules that are created whole") {
  struct Row {
    Mesh mesh;
    Arguments more = {};
    bool is_sharded = false;
  };
  const Row row =
      GENERATE(Row{.mesh = {.pipeline = 2}}, Row{.mesh = {.pipeline = 2}, .more = kMasters, .is_sharded = true},
               Row{.mesh = {.pipeline = 1, .tensor = 2}, .is_sharded = true},
               Row{.mesh = {.pipeline = 1, .tensor = 2}, .more = kMasters}, Row{.mesh = {.pipeline = 2, .shard = 2}},
               Row{.mesh = {.pipeline = 2, .shard = 2}, .more = kMasters, .is_sharded = true},
               Row{.mesh = {.pipeline = 2, .tensor = 2},
                   .more = {"--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.decay", "0.5"}},
               Row{.mesh = {.data = 2, .pipeline = 2, .more = {"--trainer.strategy.check_replicas_every", "1"}},
                   .more = {"--trainer.accumulate_grad_batches", "2"},
                   .is_sharded = true},
               Row{.mesh = {.pipeline = 1,
                            .more = {"--trainer.strategy.tensor_plan", "{'*.ln_?': sequence}"},
                            .tensor = 2,
                            .shard = 2},
                   .is_sharded = true},
               Row{.mesh = {.pipeline = 2},
                   .more = {"--adapters.target", "[transformer.h.*.attn.*]", "--adapters.rank", "2", "--adapters.train",
                            "[transformer.ln_f.*]"}});
  Mesh mesh = row.mesh;
  if (row.is_sharded) mesh = with(mesh, {"--trainer.strategy.state_dict_type", "sharded"});
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, mesh.more, row.more);
  const TemporaryFolder text, whole, later;
  const Arguments options = large_gpt(text, row.more + Arguments{"--trainer.max_steps", "4"});
  const fs::path expected = trained_mesh(whole, with(mesh, kWhole), options);
  // Within an accumulation window, if there is one. The resumed module is created without memory, too.
  interrupt_mesh(later.path(), mesh, options, "1");
  const std::vector<Finished> ranks = fit_mesh(later.path(), mesh, options + Arguments{"--resume"});
  REQUIRE(all_exit(ranks, 0));
  CHECK_FALSE(says(ranks.front().err, "created whole"));
  const fs::path found = last_checkpoint(later.path());
  CHECK(column(whole.path(), "mean_loss") == column(later.path(), "mean_loss"));
  CHECK(same_content(expected, found));
  if (row.more == kMasters) CHECK(difference_of_masters(expected, found) == 0);
}

TEST_CASE("mesh deferred: a run that was killed resumes with the bits of one whose modules are created whole") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 2, .shard = 2});
  CAPTURE(mesh.shard);
  const TemporaryFolder whole, later;
  const Arguments options = kMeshAdam + Arguments{"--model",
                                                  "ProbeStages",
                                                  "--model.width",
                                                  "600",
                                                  "--model.dropout",
                                                  "0.2",
                                                  "--model.ties",
                                                  "true",
                                                  "--trainer.max_steps",
                                                  "5",
                                                  "--trainer.callbacks+=ModelCheckpoint",
                                                  "--trainer.callbacks.every_n_train_steps",
                                                  "2"};
  const fs::path expected = trained_mesh(whole, with(mesh, kWhole), options);
  for (const Finished& run : fit_mesh(later.path(), mesh, options + Arguments{"--model.trouble", "kill"}))
    CHECK(run.exit_code != 0);
  REQUIRE(all_exit(fit_mesh(later.path(), mesh, options + Arguments{"--resume", "--allow-config-change"}), 0));
  CHECK(same_content(expected, last_checkpoint(later.path())));
}

TEST_CASE("mesh deferred: pretrained weights take the place of those of the constructor") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 1, .tensor = 2}, Mesh{.pipeline = 2, .shard = 2});
  CAPTURE(mesh.shard, mesh.tensor, mesh.pipeline);
  const TemporaryFolder text, one, whole, later;
  const fs::path weights = trained_alone(one, large_gpt(text, {"--trainer.max_steps", "1"}));
  const Arguments options =
      large_gpt(text, {"--trainer.max_steps", "1", "--pretrained.path", weights.string(), "--seed_everything", "3"});
  CHECK(same_content(trained_mesh(whole, with(mesh, kWhole), options), trained_mesh(later, mesh, options)));
}

TEST_CASE("mesh deferred: a run that only evaluates has the values of the checkpoint") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 1, .tensor = 2});
  CAPTURE(mesh.tensor, mesh.pipeline);
  const TemporaryFolder text, folder;
  const Arguments options = large_gpt(text, {"--data.test_fraction", "0.1"});
  const fs::path checkpoint = trained_mesh(folder, mesh, options + Arguments{"--trainer.max_steps", "1"});
  const auto validated = [&](const Arguments& more) {
    Arguments arguments = probe("validate", 2, 8, options + Arguments{"--ckpt_path", checkpoint.string()} + more);
    const std::vector<Finished> ranks = run_ranks({.count = 2, .folder = folder.path()}, arguments);
    REQUIRE(all_exit(ranks, 0));
    const size_t at = ranks.front().out.find("val_loss");
    REQUIRE(at != std::string::npos);
    return ranks.front().out.substr(at, ranks.front().out.find('\n', at) - at);
  };
  const Arguments of_mesh{"--trainer.strategy",
                          "mesh",
                          "--trainer.strategy.mesh.pipeline",
                          std::to_string(mesh.pipeline),
                          "--trainer.strategy.mesh.tensor",
                          std::to_string(mesh.tensor)};
  const std::string whole = validated(of_mesh + kWhole);
  CHECK(validated(of_mesh) == whole);
  CHECK(validated(of_mesh + Arguments{"--trainer.strategy.evaluation", "units"}) == whole);
}

TEST_CASE("mesh deferred: no rank has memory for all parameters, not even at the start and at the end") {
  const Arguments axes =
      GENERATE(Arguments{"--trainer.strategy.mesh.pipeline", "2"}, Arguments{"--trainer.strategy.mesh.tensor", "2"});
  const auto peak_mib = [&](const Arguments& more) {
    return peak_without_steps(2, Arguments{"--trainer.strategy", "mesh"} + axes + more);
  };
  const double nothing =
      peak_mib(kAlmostNoModel + (axes.front().ends_with("pipeline") ? Arguments{"--model.n_layer", "2"} : Arguments{}));
  const double parts = peak_mib({}) - nothing;
  CAPTURE(axes, nothing, parts);
  // Half of 16 blocks of 12 MiB, and three of them.
  CHECK(parts < 192 / 2 + 3 * 12);
  CHECK(peak_mib(kWhole) - nothing > 192);
}

TEST_CASE("mesh deferred: a constructor that reads memory is called again, and a warning says why") {
  const TemporaryFolder folder;
  const std::vector<Finished> ranks =
      fit_mesh(folder.path(), {.pipeline = 2},
               kMeshAdam + Arguments{"--model", "ProbeStages", "--model.width", "600", "--model.reads_memory", "true",
                                     "--trainer.max_steps", "1"});
  REQUIRE(all_exit(ranks, 0));
  CHECK(says(ranks.front().err, "the module is created whole in the memory of each rank"));
}

TEST_CASE("mesh deferred: parameters that have no values yet cannot be gathered") {
  const TemporaryFolder folder;
  const Arguments model = kMeshAdam + Arguments{"--model",         "ProbeStages",   "--model.width",       "600",
                                                "--model.trouble", "gathers_early", "--trainer.max_steps", "1"};
  const std::vector<Finished> ranks = fit_mesh(folder.path(), {.pipeline = 2}, model);
  CHECK(ranks[0].exit_code == 1);
  CHECK(says(ranks[0].err, "Call run.gather in on_fit_start or later, or set deferred_init: false"));
  const TemporaryFolder again;
  CHECK(all_exit(fit_mesh(again.path(), with(Mesh{.pipeline = 2}, kWhole), model), 0));
}

TEST_CASE("mesh deferred: on GPUs, the bits of modules that are created whole, over NCCL", "[gpu]") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 1, .tensor = 2});
  CAPTURE(mesh.tensor, mesh.pipeline);
  require_gpus(2);
  const TemporaryFolder text, whole, later;
  const Arguments options = large_gpt(text, {"--trainer.max_steps", "3", "--trainer.accelerator", "cuda"});
  CHECK(same_content(trained_mesh(whole, with(mesh, kWhole), options), trained_mesh(later, mesh, options)));
}

}  // namespace mesh_deferred_test
