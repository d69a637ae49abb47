// mesh with `evaluation: units`: steps of evaluations gather what they read.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include "checkpoint_contents.h"
#include "mesh_runs.h"
#include "peak_memory.h"
#include "support/combinations.h"

namespace mesh_evaluation_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const Arguments kUnits{"--trainer.strategy.evaluation", "units"};

Mesh in_units(Mesh mesh) {
  mesh.more = mesh.more + kUnits;
  return mesh;
}

Arguments with_layers(const Mesh& mesh, const Arguments& more) {
  return kMeshAdam +
         (mesh.tensor > 1 ? Arguments{"--model", "ProbeTensor", "--trainer.strategy.tensor_plan",
                                      "{embedding: vocabulary, up: column, down: row, head: gathered_column}"}
                          : Arguments{"--model", "ProbeStages", "--model.ties", "true"}) +
         more;
}

// Of a validation: what the run logs of the values of the module.
std::vector<double> validated(const fs::path& root, const Mesh& mesh) {
  const std::vector<double> values = column(root, mesh.tensor > 1 ? "val_out" : "val_loss");
  REQUIRE(values.size() >= 2);
  return values;
}

}  // namespace

TEST_CASE("mesh evaluations: units give the numbers of whole parameters, also within a window") {
  const auto [axes, more] = GENERATE(from_range(combinations<Mesh, Arguments>(
      kMeshes,
      // Some ranks have no batch in the last round.
      {{"--trainer.val_check_interval", "3", "--trainer.max_steps", "8", "--data.num_eval", "13"},
       {"--trainer.accumulate_grad_batches", "2", "--trainer.val_check_interval", "1", "--trainer.max_steps", "4",
        "--trainer.num_sanity_val_steps", "2", "--model.dropout", "0.2"},
       {"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true",
        "--trainer.val_check_interval", "2", "--trainer.max_steps", "6"}})));
  Mesh mesh = axes;
  if (mesh.shard > 1) mesh.more = {"--trainer.strategy.state_dict_type", GENERATE("full", "sharded")};
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, mesh.more, more);
  const TemporaryFolder whole, units;
  const Arguments options = with_layers(mesh, more);
  const fs::path expected = trained_mesh(whole, mesh, options), found = trained_mesh(units, in_units(mesh), options);
  CHECK(validated(whole.path(), mesh) == validated(units.path(), mesh));
  CHECK(same_content(expected, found));
}

TEST_CASE("mesh evaluations: with batch norm, a buffer of another stage is that of its owner") {
  Mesh mesh{.pipeline = 2, .micro_batches = "2"};
  mesh.more = {"--trainer.strategy.cuts", "[layer1]"};
  const TemporaryFolder whole, units;
  const Arguments options =
      with_layers(mesh, {"--model.norm", "true", "--trainer.val_check_interval", "3", "--trainer.max_steps", "6"});
  const fs::path expected = trained_mesh(whole, mesh, options), found = trained_mesh(units, in_units(mesh), options);
  CHECK(validated(whole.path(), mesh) == validated(units.path(), mesh));
  CHECK(same_content(expected, found));
}

TEST_CASE("mesh evaluations: what hooks write to parameters in a validation stays") {
  Mesh mesh = GENERATE(from_range(kMeshes));
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline);
  const Arguments written =
      with_layers(mesh, {"--trainer.val_check_interval", "2", "--trainer.max_steps", "5",
                         "--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.halves_in_validation", "true"});
  const TemporaryFolder whole, units, quiet;
  const fs::path expected = trained_mesh(whole, mesh, written), found = trained_mesh(units, in_units(mesh), written);
  CHECK(same_content(expected, found));
  CHECK_FALSE(same_content(
      trained_mesh(quiet, mesh, with_layers(mesh, {"--trainer.val_check_interval", "2", "--trainer.max_steps", "5"})),
      found));
}

TEST_CASE("mesh evaluations: gather gives whole parameters between steps and in validations") {
  const auto [axes, by_units] = GENERATE(from_range(combinations<Mesh, int>(kMeshes, {0, 1})));
  const Mesh mesh = by_units ? in_units(axes) : axes;
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, mesh.more);
  const Arguments length{"--trainer.val_check_interval", "2", "--trainer.max_steps", "5"};
  const TemporaryFolder quiet, gathered;
  trained_mesh(quiet, mesh, with_layers(mesh, length));
  const auto runs = fit_mesh(gathered.path(), mesh,
                             with_layers(mesh, length + Arguments{"--trainer.callbacks+=ProbeCallback",
                                                                  "--trainer.callbacks.gathers", "true"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err + runs[0].out, "gathered parameters: "));
  CHECK(validated(quiet.path(), mesh) == validated(gathered.path(), mesh));
}

TEST_CASE("mesh evaluations: steps of training and of validation may gather divided layers") {
  Mesh mesh = GENERATE(Mesh{.pipeline = 1, .tensor = 2}, Mesh{.pipeline = 1, .tensor = 2, .shard = 2},
                       Mesh{.data = 2, .pipeline = 1, .tensor = 2});
  if (GENERATE(false, true)) mesh = in_units(mesh);
  CAPTURE(mesh.data, mesh.shard, mesh.more);
  const Arguments more{"--model.trouble", "gathers", "--trainer.val_check_interval", "2", "--trainer.max_steps", "6"};
  const TemporaryFolder one, many;
  const auto expected = trained_alone(one, kMeshAdam + Arguments{"--model", "ProbeTensor"} + more);
  CHECK(difference(expected, trained_mesh(many, mesh, with_layers(mesh, more))) < 1e-5);
  CHECK(largest_difference(validated(one.path(), mesh), validated(many.path(), mesh)) < 1e-5);
}

TEST_CASE("mesh evaluations: what cannot be whole or gathered inside a step is an error that says what to do") {
  const auto error_of = [](const Mesh& mesh, const char* trouble) {
    const TemporaryFolder folder;
    const auto runs = fit_mesh(folder.path(), mesh,
                               with_layers(mesh, {"--model.trouble", trouble, "--trainer.val_check_interval", "2",
                                                  "--trainer.max_steps", "6"}));
    CHECK(runs[0].exit_code == 1);
    return runs[0].err;
  };
  const Mesh stages{.pipeline = 2}, tensor{.pipeline = 1, .tensor = 2};
  CHECK(says(error_of(stages, "gathers_in_layer"), "Call it in a hook before or after the step, on all ranks"));
  CHECK(says(error_of(stages, "holds_in_layer"), "Read them in a hook before or after the step"));
  CHECK(says(error_of(tensor, "holds_in_step"),
             "Call run.gather(parameter) for a copy of one, or write in a hook after the step"));
  CHECK(says(error_of(in_units(tensor), "holds_in_validation"),
             "parameters cannot be made whole in a step of an evaluation that gathers units"));
}

TEST_CASE("mesh evaluations: averages of weights, saves in parts, and a signal in a validation") {
  const auto [mesh, averages] = GENERATE(from_range(combinations<Mesh, int>(
      {{.pipeline = 2, .tensor = 2}, {.pipeline = 1, .tensor = 2, .shard = 2}, {.pipeline = 2, .shard = 2}}, {1, 0})));
  CAPTURE(mesh.shard, mesh.tensor, mesh.pipeline, averages);
  Mesh sharded = mesh;
  sharded.more = {"--trainer.strategy.state_dict_type", "sharded"};
  const TemporaryFolder text, whole, units;
  const Arguments options = mesh_gpt(
      text,
      (averages ? Arguments{"--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.decay", "0.5"} : Arguments{}) +
          Arguments{"--trainer.max_steps", "7", "--trainer.val_check_interval", "3",
                    "--trainer.accumulate_grad_batches", "2", "--trainer.callbacks+=ModelCheckpoint",
                    "--trainer.callbacks.every_n_train_steps", "3"});
  const fs::path expected = trained_mesh(whole, sharded, options);
  const Arguments signal{"--trainer.agree_every",
                         "1",
                         "--trainer.callbacks+=ProbeCallback",
                         "--trainer.callbacks.signal_rank",
                         "1",
                         "--trainer.callbacks.signal_place",
                         "validation_batch",
                         "--trainer.callbacks.signal_step",
                         "3"};
  REQUIRE(all_exit(fit_mesh(units.path(), in_units(sharded), options + signal), 75));
  REQUIRE(all_exit(fit_mesh(units.path(), in_units(sharded), options + Arguments{"--resume"}), 0));
  CHECK(same_content(expected, last_checkpoint(units.path())));
}

TEST_CASE("mesh evaluations: a run that only evaluates divides the parameters, too, and finds the same values") {
  const std::string verb = GENERATE("validate", "test", "predict");
  const std::string samples = GENERATE("1", "7", "40");
  const TemporaryFolder folder;
  const fs::path checkpoint = trained_alone(folder, kMeshAdam + Arguments{"--trainer.max_steps", "3"});
  const auto evaluated = [&](const Arguments& more) {
    const TemporaryFolder at;
    const Arguments mesh{"--ckpt_path",
                         checkpoint.string(),
                         "--data.num_eval",
                         samples,
                         "--trainer.strategy.mesh.pipeline",
                         "2",
                         "--trainer.strategy.mesh.tensor",
                         "2"};
    Arguments arguments = probe(verb, 4, 12, mesh + more);
    *std::ranges::find(arguments, "ddp") = "mesh";
    if (verb == "predict") arguments = arguments + Arguments{"--trainer.callbacks+=PredictionWriter"};
    const std::vector<Finished> runs = run_ranks({.count = 4, .folder = at.path()}, arguments);
    REQUIRE(all_exit(runs, 0));
    CHECK(says(runs[0].err, "mesh: evaluation: units · 2 units") == !more.empty());
    return evaluated_values(at.path());
  };
  CHECK(evaluated({}) == evaluated(kUnits + Arguments{"--trainer.strategy.units", "[first, last]"}));
}

TEST_CASE("mesh evaluations: no rank has memory for all parameters") {
  const Arguments axes =
      GENERATE(Arguments{"--trainer.strategy.mesh.pipeline", "4"},
               Arguments{"--trainer.strategy.mesh.pipeline", "2", "--trainer.strategy.mesh.tensor", "2"});
  const auto peak_mib = [&](const Arguments& more) {
    return peak_without_steps(
        4, Arguments{"--trainer.strategy", "mesh", "--trainer.allocator.keep_freed_memory", "false",
                     "--trainer.max_steps", "1", "--trainer.val_check_interval", "1", "--trainer.limit_val_batches",
                     "2", "--data.block_size", "16", "--data.batch_size", "4", "--data.test_fraction", "0.1"} +
               axes + more);
  };
  const double nothing = peak_mib(kAlmostNoModel + Arguments{"--model.n_layer", "4"});
  const double whole = peak_mib({}) - nothing;
  const double units = peak_mib(kUnits) - nothing;
  CAPTURE(axes, nothing, units, whole);
  // A quarter of 16 blocks of 12 MiB, twice, and some of them, which exchanges copy.
  CHECK(units < 2 * 192 / 4 + 7 * 12);
  CHECK(whole > 192);
}

TEST_CASE("mesh evaluations: wrong patterns of units are refused before the training") {
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), in_units(Mesh{.pipeline = 2}),
                             kMeshAdam + Arguments{"--model", "ProbeStages", "--trainer.limit_val_batches", "0",
                                                   "--trainer.strategy.units", "[missing.*]"});
  CHECK(all_exit(runs, 2));
  CHECK(says(runs[0].err, "a pattern of units must match a module with parameters; 'missing.*' matches none"));
}

TEST_CASE("mesh evaluations: options without an effect are refused") {
  const auto error_of = [](const Arguments& more) {
    const TemporaryFolder folder;
    const Finished run = trainer(probe("fit", 2, 8, more), {.folder = folder.path()});
    CHECK(run.exit_code == 2);
    return run.err;
  };
  const Arguments mesh{"--trainer.strategy", "mesh"};
  CHECK(says(error_of(mesh + kUnits + Arguments{"--trainer.strategy.mesh.shard", "2"}),
             "evaluation: units has no effect without an axis tensor or pipeline"));
  CHECK(says(error_of(mesh + Arguments{"--trainer.strategy.deferred_init", "false"}),
             "deferred_init: false has no effect with an axis data alone"));
  CHECK(
      says(error_of(mesh + Arguments{"--trainer.strategy.mesh.pipeline", "2", "--trainer.strategy.units", "[layer*]"}),
           "units has no effect with mesh.shard: 1 and evaluation: whole"));
}

}  // namespace mesh_evaluation_test
