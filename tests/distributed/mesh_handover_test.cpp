// Runs that other meshes and strategies continue: what ranks have saved belongs to others then.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <optional>

#include "fulgur/core/text/text.h"
#include "mesh_runs.h"

namespace mesh_handover_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const Arguments kResumed{"--resume", "--allow-config-change"};

Arguments plan_of(const Mesh& mesh, const std::string& plan) {
  return mesh.tensor > 1 ? Arguments{"--trainer.strategy.tensor_plan", plan} : Arguments{};
}

std::string name_of(const Mesh& mesh) {
  return fulgur::cat("data ", mesh.data, ", shard ", mesh.shard, ", tensor ", mesh.tensor, ", pipeline ",
                     mesh.pipeline);
}

}  // namespace

TEST_CASE("mesh handed over: ranks with other places get the random numbers of their share of the data") {
  // A hook changes the order of samples, which all ranks of a pipeline must do alike; the loss is that of any order.
  const Arguments model = kMeshAdam + Arguments{"--model", "ProbeStages", "--model.shuffles", "true"};
  const TemporaryFolder alone;
  const fs::path expected = trained_alone(alone, model + Arguments{"--trainer.max_steps", "8"});
  const std::vector<Mesh> meshes{{.data = 1, .pipeline = 1, .tensor = 2, .shard = 2},
                                 {.data = 2, .pipeline = 2},
                                 {.data = 2, .pipeline = 1, .tensor = 2},
                                 {.data = 1, .pipeline = 2, .tensor = 2}};
  const size_t first = GENERATE(0, 1, 2, 3), second = GENERATE(0, 1, 2, 3);
  if (first == second) return;
  CAPTURE(name_of(meshes[first]), name_of(meshes[second]));
  const TemporaryFolder folder;
  const auto run = [&](const Mesh& mesh, const Arguments& more) {
    return fit_mesh(folder.path(), mesh, model + plan_of(mesh, "{first: gathered_column}") + more);
  };
  REQUIRE(all_exit(run(meshes[first], {"--trainer.max_steps", "3"}), 0));
  REQUIRE(all_exit(run(meshes[second], kResumed + Arguments{"--trainer.max_steps", "8"}), 0));
  CHECK(difference(expected, last_checkpoint(folder.path())) < 1e-5);
}

TEST_CASE("mesh handed over: what an epoch has logged is counted once") {
  const std::string plan = "{embedding: vocabulary, up: column, down: row, head: gathered_column}";
  const Arguments model = kMeshAdam + Arguments{"--model", "ProbeTensor", "--trainer.max_epochs", "1"};
  const TemporaryFolder alone;
  trained_alone(alone, model);
  const Mesh first = GENERATE(Mesh{.pipeline = 1, .tensor = 2}, Mesh{.pipeline = 2, .tensor = 2}, Mesh{.pipeline = 2},
                              Mesh{.pipeline = 1, .tensor = 2, .shard = 2});
  const auto second =
      GENERATE(std::optional<Mesh>(), std::optional(Mesh{.pipeline = 1, .tensor = 2}),
               std::optional(Mesh{.pipeline = 2, .tensor = 2}), std::optional(Mesh{.data = 2, .pipeline = 2}));
  CAPTURE(name_of(first), second ? name_of(*second) : std::string("one process"));
  const TemporaryFolder folder;
  REQUIRE(all_exit(fit_mesh(folder.path(), first, model + plan_of(first, plan) + Arguments{"--trainer.max_steps", "3"}),
                   0));
  REQUIRE(all_exit(second ? fit_mesh(folder.path(), *second, model + plan_of(*second, plan) + kResumed)
                          : fit_alone(folder.path(), model + kResumed),
                   0));
  const std::vector<double> expected = column(alone.path(), "samples"), found = column(folder.path(), "samples");
  REQUIRE_FALSE(expected.empty());
  REQUIRE_FALSE(found.empty());
  CHECK(expected.back() == found.back());
}

TEST_CASE("mesh handed over: a window whose gradients other ranks have is refused, also if rank 0 trains nothing") {
  const TemporaryFolder folder;
  const Mesh mesh{.pipeline = 2};
  const Arguments options = kMeshAdam + Arguments{"--model",
                                                  "ProbeStages",
                                                  "--trainer.accumulate_grad_batches",
                                                  "4",
                                                  "--trainer.max_epochs",
                                                  "2",
                                                  "--trainer.callbacks+=Finetuning",
                                                  "--trainer.callbacks.freeze",
                                                  "[first*, layer0*, layer1*]"};
  interrupt_mesh(folder.path(), mesh, options, "1");
  for (const auto& runs : {fit_alone(folder.path(), options + kResumed),
                           fit_mesh(folder.path(), {.data = 2, .pipeline = 2}, options + kResumed)}) {
    CHECK(all_exit(runs, 4));
    CHECK(says(runs[0].err, "between a backward and its step"));
  }
  CHECK(all_exit(fit_mesh(folder.path(), mesh, options + Arguments{"--resume"}), 0));
}

TEST_CASE("mesh handed over: parts of gradients of different sizes are refused by name") {
  const TemporaryFolder text, folder;
  // 15 classes: the ranks along tensor have 8 and 7 rows.
  const Arguments options = mesh_gpt(text, {"--model.vocab_size", "15", "--trainer.accumulate_grad_batches", "4",
                                            "--trainer.max_epochs", "1", "--data.test_fraction", "0.1"});
  interrupt_mesh(folder.path(), {.pipeline = 1, .tensor = 2}, options, "2");
  const auto runs = fit_alone(folder.path(), options + kResumed);
  CHECK(all_exit(runs, 4));
  CHECK(says(runs[0].err, "between a backward and its step"));
}

}  // namespace mesh_handover_test
