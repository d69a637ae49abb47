// mesh with an axis `shard`: ranks that divide parameters, gradients and states compute what one process does.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>

#include "mesh_runs.h"
#include "peak_memory.h"
#include "support/combinations.h"
#include "support/gpu.h"

namespace mesh_shard_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const std::string kPlan = "{embedding: vocabulary, up: column, down: row, head: gathered_column}";

// Layers for each of the axes.
Arguments divided(const Mesh& mesh, const Arguments& more) {
  return kMeshAdam +
         (mesh.tensor > 1 ? Arguments{"--model", "ProbeTensor", "--trainer.log_every_n_steps", "1",
                                      "--trainer.strategy.tensor_plan", kPlan}
                          : Arguments{"--model", "ProbeStages"}) +
         more;
}

// One process has no plan.
Arguments alone(const Mesh& mesh, const Arguments& more) {
  return kMeshAdam +
         (mesh.tensor > 1 ? Arguments{"--model", "ProbeTensor", "--trainer.log_every_n_steps", "1"}
                          : Arguments{"--model", "ProbeStages"}) +
         more;
}

}  // namespace

TEST_CASE("shard: clipping, accumulation, shorter windows, tied weights, skipped steps and validation") {
  const auto [mesh, more] = GENERATE(from_range(combinations<Mesh, Arguments>(
      {{.pipeline = 1, .shard = 2},
       {.pipeline = 2, .shard = 2},
       {.pipeline = 1, .tensor = 2, .shard = 2},
       {.pipeline = 2, .tensor = 2, .shard = 2},
       {.data = 2, .pipeline = 2, .shard = 2}},
      {{"--trainer.gradient_clip_val", "0.05", "--trainer.log_grad_norm", "true"},
       {"--trainer.gradient_clip_val", "0.01", "--trainer.gradient_clip_algorithm", "value"},
       {"--trainer.accumulate_grad_batches", "3"},
       {"--data.num_train", "64", "--trainer.accumulate_grad_batches", "3"},
       {"--model.ties", "true", "--trainer.gradient_clip_val", "0.05"},
       {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan"},
       {"--trainer.val_check_interval", "3"}})));
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, more);
  if (mesh.tensor > 1 && more[0] == "--model.ties") {
    SUCCEED("a GPT ties divided weights");
    return;
  }
  const Arguments length = more + Arguments{"--trainer.max_steps", "30"};
  const TemporaryFolder one, many;
  const auto expected = trained_alone(one, alone(mesh, length));
  const auto found = trained_mesh(many, mesh, divided(mesh, length));
  CHECK(difference(expected, found) < 1e-5);
  // The other module logs the loss of a share of the data.
  if (mesh.tensor > 1)
    CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-5);
  if (more.back() == "true")
    CHECK(largest_difference(column(one.path(), "grad_norm"), column(many.path(), "grad_norm")) < 1e-5);
}

TEST_CASE("shard: with bf16-mixed, losses stay near those of one process") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 1, .shard = 2}, Mesh{.pipeline = 2, .shard = 2},
                             Mesh{.pipeline = 1, .tensor = 2, .shard = 2});
  const TemporaryFolder text, one, many;
  const Arguments options = mesh_gpt(text, {"--trainer.precision", "bf16-mixed", "--trainer.max_steps", "30"});
  trained_alone(one, options);
  trained_mesh(many, mesh, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 2e-2);
}

TEST_CASE("shard: an interrupted run continues to the bit") {
  // At step 1, the run is inside an accumulation window.
  const auto [mesh, cut_at] =
      GENERATE(from_range(combinations<Mesh, std::string>({{.pipeline = 1, .shard = 2},
                                                           {.data = 2, .pipeline = 1, .shard = 2},
                                                           {.pipeline = 2, .shard = 2},
                                                           {.pipeline = 1, .tensor = 2, .shard = 2}},
                                                          {"1", "7"})));
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, cut_at);
  const Arguments options =
      divided(mesh, {"--model.dropout", "0.2", "--trainer.accumulate_grad_batches", "2", "--trainer.max_epochs", "3"});
  const TemporaryFolder whole, parts;
  const auto expected = trained_mesh(whole, mesh, options);
  interrupt_mesh(parts.path(), mesh, options, cut_at);
  REQUIRE(all_exit(fit_mesh(parts.path(), mesh, options + Arguments{"--resume"}), 0));
  CHECK(same_bits(expected, last_checkpoint(parts.path())));
  CHECK(same_states(expected, last_checkpoint(parts.path())));
}

TEST_CASE("shard: checkpoints are those of one process, and of any mesh and strategy") {
  const TemporaryFolder whole, parts;
  const Mesh of_tensor{.pipeline = 1, .tensor = 2, .shard = 2};
  const Arguments length{"--data.num_train", "96"};
  const auto to = [&](const char* steps, bool resumes = true) {
    return length + Arguments{"--trainer.max_steps", steps} +
           (resumes ? Arguments{"--resume", "--allow-config-change"} : Arguments{});
  };
  const auto expected = trained_alone(whole, alone(of_tensor, to("24", false)));
  REQUIRE(all_exit(fit_mesh(parts.path(), of_tensor, divided(of_tensor, to("5", false))), 0));
  REQUIRE(all_exit(fit_alone(parts.path(), alone(of_tensor, to("8"))), 0));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.pipeline = 2, .shard = 2}, alone(of_tensor, to("12"))), 0));
  Arguments fsdp = probe("fit", 2, 8, alone(of_tensor, to("16")));
  *std::ranges::find(fsdp, "ddp") = "fsdp";
  REQUIRE(all_exit(
      run_ranks({.count = 2, .folder = parts.path()}, fsdp + Arguments{"--trainer.strategy.sharding", "parameters"}),
      0));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.data = 2, .pipeline = 1, .shard = 2}, alone(of_tensor, to("20"))), 0));
  const Mesh all{.pipeline = 2, .tensor = 2, .shard = 2};
  REQUIRE(all_exit(fit_mesh(parts.path(), all, divided(all, to("24"))), 0));
  CHECK(difference(expected, last_checkpoint(parts.path())) < 1e-5);
}

TEST_CASE("shard: between steps, a rank keeps its part of the parameters, and of the optimizers' states") {
  const TemporaryFolder text;
  const auto kept = [&](const Mesh& mesh) {
    const TemporaryFolder folder;
    const auto runs =
        fit_mesh(folder.path(), mesh, mesh_gpt(text, {"--model.n_embd", "64", "--trainer.max_steps", "2"}));
    REQUIRE(all_exit(runs, 0));
    double most = 0;
    for (size_t rank = 0; rank < runs.size(); ++rank) {
      const auto lines = lines_of(folder.path(), runs, rank, "bytes kept between steps: ");
      REQUIRE_FALSE(lines.empty());
      most = std::max(most, std::stod(lines.back()));
    }
    return most;
  };
  for (Mesh mesh : {Mesh{.pipeline = 2}, Mesh{.pipeline = 1, .tensor = 2}}) {
    CAPTURE(mesh.pipeline, mesh.tensor);
    const double whole = kept(mesh);
    mesh.shard = 2;
    CHECK(kept(mesh) < 0.56 * whole);
  }
  CHECK(kept({.pipeline = 1, .shard = 4}) < 0.56 * kept({.pipeline = 1, .shard = 2}));
}

TEST_CASE("shard: parameters that are frozen first, and learn later, in the same units") {
  const Mesh mesh{.pipeline = 1, .tensor = 2, .shard = 2};
  const Arguments more{
      "--trainer.max_steps",
      "10",
      "--trainer.accumulate_grad_batches",
      GENERATE("1", "2"),
      "--trainer.callbacks+=Finetuning",
      "--trainer.callbacks.freeze",
      "[down.weight, norm.bias, embedding.*]",
      "--trainer.callbacks.unfreeze",
      "[{pattern: down.weight, at: 4st}, {pattern: norm.bias, at: 5st}, {pattern: 'embedding.*', at: 6st}]"};
  const TemporaryFolder one, many;
  const auto expected = trained_alone(one, alone(mesh, more));
  CHECK(difference(expected, trained_mesh(many, mesh, divided(mesh, more))) < 1e-5);
}

TEST_CASE("shard: without a pipeline, a step has a few units of the parameters and gradients at a time") {
  const auto peak_mib = [](const Arguments& more) {
    return peak_without_steps(
        4, Arguments{"--trainer.strategy", "mesh", "--trainer.strategy.mesh", "{tensor: 2, shard: 2}",
                     "--data.batch_size", "2", "--data.block_size", "16", "--trainer.max_steps", "2",
                     "--trainer.allocator.keep_freed_memory", "false"} +
               more);
  };
  const double nothing = peak_mib(kAlmostNoModel), units = peak_mib({}) - nothing,
               one_unit = peak_mib({"--trainer.strategy.units", "[]"}) - nothing;
  CAPTURE(nothing, units, one_unit);
  // A quarter of 192 MiB of parameters, and of gradients, and at most eight units of 12 MiB. As one unit, a half of
  // each is there, too, in a step.
  CHECK(units < 192.0 / 4 * 2 + 96);
  CHECK(one_unit > 192.0 / 4 * 2 + 192);
}

TEST_CASE("shard: copies along data that differ are found") {
  const TemporaryFolder folder;
  const auto runs =
      fit_mesh(folder.path(), {.data = 2, .pipeline = 2, .shard = 2},
               kMeshAdam + Arguments{"--model", "ProbeStages", "--model.trouble", "writes",
                                     "--trainer.strategy.check_replicas_every", "1", "--trainer.max_steps", "6"});
  CHECK_FALSE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "the weights differ between ranks with the same stages"));
}

TEST_CASE("shard: what does not fit is refused, with the reason") {
  const auto message = [&](const Mesh& mesh, const Arguments& more) {
    const TemporaryFolder folder;
    const auto runs = fit_mesh(folder.path(), mesh, more + Arguments{"--trainer.max_steps", "4"});
    for (const Finished& run : runs) CHECK(run.exit_code != 0);
    return runs[0].err;
  };
  const Arguments plain = kMeshAdam + Arguments{"--model", "ProbeStages"};
  const auto again = [](const char* option, const char* value) { return Arguments{option, value}; };
  CHECK(says(message({.pipeline = 2, .more = again("--trainer.strategy.mesh.shard", "2"), .shard = 3}, plain),
             "which must be a multiple of mesh.shard: 2 × mesh.pipeline: 2 = 4"));
  CHECK(says(message({.pipeline = 1, .more = again("--trainer.strategy.mesh.data", "2"), .shard = 2}, plain),
             "2 (data) × 2 (shard) × 1 (pipeline) = 4 ranks, and the run has 2"));
  CHECK(says(message({.pipeline = 2, .more = again("--trainer.strategy.units", "[first]")}, plain),
             "units has no effect with mesh.shard: 1"));
  CHECK(says(message({.pipeline = 2, .more = again("--trainer.strategy.units", "[frist]"), .shard = 2}, plain),
             "'frist' matches none"));
  CHECK(says(message({.pipeline = 1, .shard = 2}, {"--optimizer", "LBFGS", "--model", "ProbeStages"}),
             "LBFGS needs whole parameters"));
  CHECK(says(message({.pipeline = 1, .shard = 2}, plain + Arguments{"--trainer.auto_micro_batch", "true"}),
             "auto_micro_batch"));
}

TEST_CASE("shard: on GPUs the ranks compute what one process does, over NCCL", "[gpu]") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 1, .shard = 2}, Mesh{.pipeline = 2, .shard = 2},
                             Mesh{.pipeline = 1, .tensor = 2, .shard = 2}, Mesh{.data = 2, .pipeline = 2, .shard = 2});
  require_gpus(mesh.ranks());
  const TemporaryFolder text, one, many;
  const Arguments options =
      mesh_gpt(text, {"--trainer.max_steps", all_combinations() ? "100" : "30", "--trainer.accelerator", "cuda"});
  trained_alone(one, options + Arguments{"--trainer.devices", "1"});
  trained_mesh(many, mesh, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-4);
}

}  // namespace mesh_shard_test
