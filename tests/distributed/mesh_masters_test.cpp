// mesh with weights in half precision: ranks have float32 copies of what they step.
#include <ATen/ops/equal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include "checkpoint_contents.h"
#include "mesh_runs.h"
#include "support/combinations.h"

namespace mesh_masters_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const std::string kPlan = "{embedding: vocabulary, up: column, down: row, head: gathered_column}";
const Arguments kMasters{"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true"};

// Layers for each of the axes. Options of an optimizer come first.
Arguments with_layers(const Mesh& mesh, const Arguments& optimizer, const Arguments& more, bool divides = true) {
  if (mesh.tensor == 1) return optimizer + Arguments{"--model", "ProbeStages"} + more;
  const Arguments model = optimizer + Arguments{"--model", "ProbeTensor"} + more;
  return divides ? model + Arguments{"--trainer.strategy.tensor_plan", kPlan} : model;
}

// Those without tensor come last: combinations gives them the tied weights.
const std::vector<Mesh> kMeshesOfCopies{{.pipeline = 2},
                                        {.pipeline = 1, .tensor = 2},
                                        {.pipeline = 2, .tensor = 2},
                                        {.pipeline = 1, .tensor = 2, .shard = 2},
                                        {.data = 2, .pipeline = 2},
                                        {.pipeline = 2, .shard = 2}};

}  // namespace

TEST_CASE("mesh masters: the float32 copies are near those of one process, and weights are what they round to") {
  const auto [mesh, precision, extra] = GENERATE(from_range(combinations<Mesh, Arguments, Arguments>(
      kMeshesOfCopies,
      {kMasters,
       {"--trainer.precision", "16-true", "--trainer.precision.master_weights", "true",
        "--trainer.precision.loss_scaling", "true"}},
      {{}, {"--trainer.accumulate_grad_batches", "3"}, {"--model.ties", "true"}})));
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, precision, extra);
  if (mesh.tensor > 1 && !extra.empty() && extra[0] == "--model.ties") {
    SUCCEED("a GPT ties divided weights");
    return;
  }
  const Arguments sgd{"--optimizer", "SGD", "--optimizer.lr", "0.05"};
  const Arguments more =
      precision + extra + Arguments{"--trainer.max_steps", "20", "--trainer.gradient_clip_val", "0.1"};
  const TemporaryFolder one, many;
  const fs::path expected = trained_alone(one, with_layers(mesh, sgd, more, /*divides=*/false)),
                 found = trained_mesh(many, mesh, with_layers(mesh, sgd, more));
  CHECK(difference_of_masters(expected, found) < 2e-3);
  const fulgur::CheckpointContent content = fulgur::read_checkpoint(found);
  const fulgur::StateTree copies = master_weights_in(found);
  bool any_is_finer = false;
  for (const auto& [name, weights] : content.module) {
    if (!copies.contains(name)) continue;
    const fulgur::Tensor& copy = copies.at(name).tensor();
    CAPTURE(name);
    CHECK(copy.to(weights.scalar_type()).equal(weights));
    any_is_finer |= !weights.to(at::kFloat).equal(copy);
  }
  CHECK(any_is_finer);
}

TEST_CASE("mesh masters: an interrupted run continues to the bit, also in parts") {
  // At step 1, the run is inside an accumulation window.
  const auto [axes, type, cut_at] = GENERATE(
      from_range(combinations<Mesh, std::string, std::string>(kMeshesOfCopies, {"full", "sharded"}, {"1", "7"})));
  Mesh mesh = axes;
  mesh.more = {"--trainer.strategy.state_dict_type", type};
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, mesh.more, cut_at);
  const Arguments options = with_layers(
      mesh, kMeshAdam, kMasters + Arguments{"--trainer.accumulate_grad_batches", "2", "--trainer.max_epochs", "3"});
  const TemporaryFolder whole, parts;
  const fs::path expected = trained_mesh(whole, mesh, options);
  interrupt_mesh(parts.path(), mesh, options, cut_at);
  REQUIRE(all_exit(fit_mesh(parts.path(), mesh, options + Arguments{"--resume"}), 0));
  CHECK(difference_of_masters(expected, last_checkpoint(parts.path())) == 0);
  CHECK(same_content(expected, last_checkpoint(parts.path())));
  CHECK(has_whole_masters(last_checkpoint(parts.path())) == (mesh.more.back() == "full"));
}

TEST_CASE("mesh masters: one process and meshes hand copies and states over to each other") {
  const TemporaryFolder whole, parts;
  const Mesh tensor{.pipeline = 1, .tensor = 2};
  const auto to = [&](const char* steps, bool resumes = true) {
    return kMasters + Arguments{"--trainer.max_steps", steps, "--data.num_train", "96"} +
           (resumes ? Arguments{"--resume", "--allow-config-change"} : Arguments{});
  };
  const Arguments slow{"--optimizer", "AdamW", "--optimizer.lr", "0.0005"};
  const fs::path expected = trained_alone(whole, with_layers(tensor, slow, to("20", false), /*divides=*/false));
  REQUIRE(all_exit(fit_mesh(parts.path(), tensor, with_layers(tensor, slow, to("5", false))), 0));
  REQUIRE(all_exit(fit_alone(parts.path(), with_layers(tensor, slow, to("8"), /*divides=*/false)), 0));
  for (const auto& [mesh, steps] : {std::pair{Mesh{.pipeline = 2, .tensor = 2}, "12"},
                                    {Mesh{.pipeline = 1, .tensor = 2, .shard = 2}, "16"},
                                    {tensor, "20"}})
    REQUIRE(all_exit(fit_mesh(parts.path(), mesh, with_layers(mesh, slow, to(steps))), 0));
  CHECK(difference_of_masters(expected, last_checkpoint(parts.path())) < 2e-3);
}

}  // namespace mesh_masters_test
