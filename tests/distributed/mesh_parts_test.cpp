// Checkpoints that each rank of a mesh writes its parts of: the same content as those with whole tensors.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <fstream>
#include <set>

#include "checkpoint_contents.h"
#include "fulgur/checkpoint/safetensors.h"
#include "mesh_runs.h"
#include "support/combinations.h"
#include "support/gpu.h"

namespace mesh_parts_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const std::string kPlan = "{embedding: vocabulary, up: column, down: row, head: gathered_column}";

Mesh in_parts(Mesh mesh) {
  mesh.more = mesh.more + Arguments{"--trainer.strategy.state_dict_type", "sharded"};
  return mesh;
}

// Layers for each of the axes.
Arguments divided(const Mesh& mesh, const Arguments& more) {
  return kMeshAdam +
         (mesh.tensor > 1 ? Arguments{"--model", "ProbeTensor", "--trainer.strategy.tensor_plan", kPlan}
                          : Arguments{"--model", "ProbeStages"}) +
         more;
}

// Of all kinds that two and four ranks have.
const std::vector<Mesh> kAllMeshes = [] {
  std::vector<Mesh> all = kMeshes;
  all.push_back({.data = 2, .pipeline = 1, .shard = 2});
  return all;
}();

// The files with parts of weights: the ranks that have written them.
std::set<std::string> writers_of(const fs::path& checkpoint) {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (const std::string name = entry.path().filename().string(); name.starts_with("model-part-"))
      files.insert(name.substr(11, 5));
  return files;
}

void change_last_byte(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(stream.good());
  stream.seekg(-1, std::ios::end);
  const int last = stream.get();
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
}

}  // namespace

TEST_CASE("mesh in parts: the parts of all ranks are the whole tensors of a full checkpoint") {
  const auto [axes, more] = GENERATE(from_range(combinations<Mesh, Arguments>(
      kAllMeshes, {{"--trainer.async_checkpoint", "true"},
                   {"--trainer.async_checkpoint", "false", "--trainer.val_check_interval", "3"}})));
  Mesh mesh = axes;
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, more);
  Arguments options = divided(mesh, more + Arguments{"--trainer.max_steps", "6"});
  if (mesh.tensor == 1) {
    // Buffers of the second stage, and a weight of both.
    options = options + Arguments{"--model.norm", "true", "--model.ties", "true"};
    mesh.micro_batches = "2";
    if (mesh.pipeline > 1) mesh.more = {"--trainer.strategy.cuts", "[layer1]"};
  }
  const TemporaryFolder full, parts;
  const fs::path whole = trained_mesh(full, mesh, options), found = trained_mesh(parts, in_parts(mesh), options);
  CHECK(part_files(whole) == 0);
  CHECK(same_content(whole, found));
  CHECK(fulgur::verify_checkpoint(found).ok());
  // Ranks along data have the same: the first of them writes.
  const auto writers = writers_of(found);
  CHECK(writers.size() == static_cast<size_t>(mesh.ranks() / mesh.data));
  // Nothing of a save is left beside it.
  for (const auto& entry : fs::directory_iterator(found.parent_path()))
    CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("mesh in parts: a GPT, whose queries, keys and values are divided by heads, and whose embedding is tied") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2, .tensor = 2}, Mesh{.pipeline = 1, .tensor = 2, .shard = 2},
                             Mesh{.pipeline = 2, .shard = 2});
  CAPTURE(mesh.shard, mesh.tensor, mesh.pipeline);
  const TemporaryFolder text, full, parts;
  // 15 classes: the ranks along tensor have different numbers of rows.
  const Arguments options =
      mesh_gpt(text, {"--model.vocab_size", "15", "--trainer.max_steps", "3", "--data.test_fraction", "0.1"});
  const fs::path found = trained_mesh(parts, in_parts(mesh), options);
  CHECK(same_content(trained_mesh(full, mesh, options), found));
  const Arguments evaluated = options + Arguments{"--ckpt_path", found.string()};
  for (const std::string verb : {"validate", "test", "predict"}) {
    CAPTURE(verb);
    const Finished run = trainer(probe(verb, 1, 8, evaluated), {.folder = parts.path()});
    INFO(run.err);
    CHECK(run.exit_code == 0);
  }
}

TEST_CASE("mesh in parts: what is saved while all parameters are there, as for averages in a validation") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2, .tensor = 2}, Mesh{.pipeline = 1, .tensor = 2, .shard = 2},
                             Mesh{.pipeline = 2, .shard = 2});
  CAPTURE(mesh.shard, mesh.tensor, mesh.pipeline);
  const TemporaryFolder text, full, parts;
  const Arguments options =
      mesh_gpt(text, {"--trainer.max_steps", "7", "--trainer.val_check_interval", "3",
                      "--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.decay", "0.5",
                      "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "3"});
  const fs::path whole = trained_mesh(full, mesh, options), found = trained_mesh(parts, in_parts(mesh), options);
  const auto of = [](const fs::path& checkpoint) { return fulgur::list_checkpoints(checkpoint.parent_path()); };
  REQUIRE(of(whole).size() == of(found).size());
  for (size_t i = 0; i < of(whole).size(); ++i) {
    CAPTURE(of(whole)[i].global_step);
    CHECK(of(whole)[i].global_step == of(found)[i].global_step);
    CHECK(same_content(of(whole)[i].path, of(found)[i].path));
  }
}

TEST_CASE("mesh in parts: an interrupted run continues to the bit") {
  // At step 1, the run is inside an accumulation window.
  const auto [axes, cut_at] = GENERATE(from_range(combinations<Mesh, std::string>(kAllMeshes, {"1", "7"})));
  const Mesh mesh = in_parts(axes);
  CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, cut_at);
  const Arguments options =
      divided(mesh, {"--model.dropout", "0.2", "--trainer.accumulate_grad_batches", "2", "--trainer.max_epochs", "3"});
  const TemporaryFolder whole, parts;
  const auto expected = trained_mesh(whole, mesh, options);
  interrupt_mesh(parts.path(), mesh, options, cut_at);
  REQUIRE(part_files(last_checkpoint(parts.path())) > 0);
  REQUIRE(all_exit(fit_mesh(parts.path(), mesh, options + Arguments{"--resume"}), 0));
  CHECK(same_content(expected, last_checkpoint(parts.path())));
}

TEST_CASE("mesh in parts: a run is handed over among meshes, fsdp and one process, each with other parts") {
  const TemporaryFolder whole, parts;
  const Arguments model = kMeshAdam + Arguments{"--model", "ProbeTensor", "--data.num_train", "96"};
  const auto to = [&](const char* steps) { return Arguments{"--trainer.max_steps", steps}; };
  const auto expected = trained_alone(whole, model + to("24"));
  const auto go_on = [&](const Mesh& mesh, const char* steps, const std::string& plan = kPlan) {
    Arguments more = model + to(steps) + Arguments{"--resume", "--allow-config-change"};
    if (mesh.tensor > 1) more = more + Arguments{"--trainer.strategy.tensor_plan", plan};
    REQUIRE(all_exit(fit_mesh(parts.path(), in_parts(mesh), more), 0));
    CHECK(part_files(last_checkpoint(parts.path())) > 0);
  };
  REQUIRE(all_exit(fit_mesh(parts.path(), in_parts({.pipeline = 2, .tensor = 2}),
                            model + Arguments{"--trainer.strategy.tensor_plan", kPlan} + to("4")),
                   0));
  go_on({.pipeline = 1, .tensor = 2, .shard = 2}, "7");
  go_on({.pipeline = 2, .shard = 2}, "10");
  Arguments fsdp = probe("fit", 2, 8, model + to("13") + Arguments{"--resume", "--allow-config-change"});
  *std::ranges::find(fsdp, "ddp") = "fsdp";
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = parts.path()},
                             fsdp + Arguments{"--trainer.strategy.sharding", "parameters",
                                              "--trainer.strategy.state_dict_type", "sharded"}),
                   0));
  go_on({.pipeline = 1, .tensor = 4}, "16", "{embedding: vocabulary, up: column, down: row}");
  REQUIRE(all_exit(fit_alone(parts.path(), model + to("18") + Arguments{"--resume", "--allow-config-change"}), 0));
  go_on({.data = 2, .pipeline = 2}, "21");
  go_on({.pipeline = 1, .tensor = 2}, "24");
  CHECK(difference(expected, last_checkpoint(parts.path())) < 1e-5);
}

TEST_CASE("mesh in parts: a rank that resumes needs no more memory than one that trains, and one tensor") {
  const Mesh mesh = in_parts(GENERATE(Mesh{.pipeline = 2, .micro_batches = "2"}, Mesh{.pipeline = 1, .tensor = 2},
                                      Mesh{.pipeline = 2, .micro_batches = "2", .shard = 2}));
  CAPTURE(mesh.shard, mesh.tensor, mesh.pipeline);
  // 36 MB of weights in four tensors, or 40 MB in two; twice as much of states.
  const Arguments options = divided(mesh, mesh.tensor > 1 ? Arguments{"--model.hidden", "1000000"}
                                                          : Arguments{"--model.width", "1500", "--model.layers", "4"}) +
                            Arguments{"--data.num_eval", "4", "--trainer.max_steps", "1"};
  const TemporaryFolder folder;
  const auto peak_of = [&](const Arguments& more) {
    const auto ranks = fit_mesh(folder.path(), mesh, options + more);
    REQUIRE(all_exit(ranks, 0));
    const std::string text = "peak memory: cpu ";
    const size_t at = ranks[0].err.find(text);
    REQUIRE(at != std::string::npos);
    return std::stod(ranks[0].err.substr(at + text.size()));
  };
  const double trained = peak_of({});
  // Nothing is left to train: the peak is that of the start.
  const double resumed = peak_of({"--ckpt_path", "last"});
  CAPTURE(trained, resumed);
  CHECK(resumed < trained + (mesh.tensor > 1 ? 20 : 10));
}

TEST_CASE("mesh in parts: a step that is not finite is undone by the last checkpoint, as with full ones") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2, .tensor = 2}, Mesh{.pipeline = 2, .shard = 2},
                             Mesh{.pipeline = 1, .tensor = 2, .shard = 2});
  CAPTURE(mesh.shard, mesh.tensor, mesh.pipeline);
  const TemporaryFolder full, parts;
  const Arguments options =
      divided(mesh, {"--trainer.max_steps", "6", "--trainer.on_nonfinite", "rollback", "--model.trouble", "nan_once",
                     "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "2"});
  const auto runs = fit_mesh(parts.path(), in_parts(mesh), options);
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "restored from"));
  CHECK(same_content(trained_mesh(full, mesh, options), last_checkpoint(parts.path())));
}

TEST_CASE("mesh in parts: exported, inspected and evaluated as others are") {
  const Mesh mesh = in_parts(GENERATE(Mesh{.pipeline = 2, .tensor = 2}, Mesh{.pipeline = 1, .tensor = 2, .shard = 2}));
  CAPTURE(mesh.shard, mesh.pipeline);
  const TemporaryFolder folder;
  const fs::path checkpoint = trained_mesh(folder, mesh, divided(mesh, {"--trainer.max_steps", "5"}));
  const fs::path file = folder / "net.safetensors";
  const Finished exported =
      trainer({"export", checkpoint.string(), "--output", file.string()}, {.folder = folder.path()});
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  check_exported(file, checkpoint);
  const Finished shown = trainer({"inspect", checkpoint.string()}, {.folder = folder.path()});
  CHECK(shown.exit_code == 0);
  CHECK(says(shown.out, "embedding.weight"));
  const Arguments evaluated{"--model", "ProbeTensor", "--ckpt_path", checkpoint.string()};
  const Finished alone = trainer(probe("validate", 1, 8, evaluated), {.folder = folder.path()});
  INFO(alone.err);
  CHECK(alone.exit_code == 0);
  CHECK(all_exit(run_ranks({.count = 2, .folder = folder.path()}, probe("validate", 2, 8, evaluated)), 0));
  const Finished tuned =
      trainer(probe("fit", 1, 8,
                    {"--model", "ProbeTensor", "--pretrained.path", checkpoint.string(), "--trainer.max_steps", "1"}),
              {.folder = folder.path()});
  INFO(tuned.err);
  CHECK(tuned.exit_code == 0);
}

TEST_CASE("mesh in parts: damage to one part is named, by a resume and an evaluation") {
  const Mesh mesh = in_parts({.pipeline = 2, .tensor = 2});
  const TemporaryFolder folder;
  const Arguments options = divided(mesh, {"--trainer.max_steps", "5"});
  const fs::path checkpoint = trained_mesh(folder, mesh, options);
  const std::string file = "optimizer-part-00004-of-00004.safetensors";
  change_last_byte(checkpoint / file);
  const auto runs = fit_mesh(folder.path(), mesh, options + Arguments{"--ckpt_path", checkpoint.string()});
  CHECK(all_exit(runs, 4));
  CHECK(says(runs[0].err, file));
  const Finished shown = trainer({"inspect", checkpoint.string()}, {.folder = folder.path()});
  CHECK(shown.exit_code == 4);
  CHECK(says(shown.out + shown.err, file));
  change_last_byte(checkpoint / "model-part-00002-of-00004.safetensors");
  const Finished evaluated =
      trainer(probe("validate", 1, 8, {"--model", "ProbeTensor", "--ckpt_path", checkpoint.string()}),
              {.folder = folder.path()});
  CHECK(evaluated.exit_code == 4);
  CHECK(says(evaluated.err, "model-part-00002-of-00004.safetensors"));
}

TEST_CASE("mesh in parts: a rank that cannot write its part fails the save on all, and the last good one stays") {
  const Mesh mesh = in_parts(GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 1, .tensor = 2}));
  const std::string async = GENERATE("true", "false");
  const TemporaryFolder folder;
  const auto runs = fit_mesh(
      folder.path(), mesh,
      divided(mesh, {"--trainer.async_checkpoint", async, "--trainer.max_steps", "15", "--trainer.on_save_error",
                     "continue", "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "5",
                     "--trainer.callbacks+=ProbeSaves", "--trainer.callbacks.file_limit_step", "12"}));
  CAPTURE(async);
  CHECK(all_exit(runs, 0));
  CHECK(says(runs[0].err, "This was rank 1."));
  const fs::path last = last_checkpoint(folder.path());
  CHECK(fulgur::summarize_checkpoint(last).global_step <= 12);
  for (const auto& entry : fs::directory_iterator(last.parent_path())) {
    CAPTURE(entry.path());
    CHECK(entry.path().filename().string().front() != '.');
    CHECK(fulgur::verify_checkpoint(entry.path()).ok());
  }
}

TEST_CASE("mesh in parts: weights that are not finite on one rank are not saved") {
  const Mesh mesh = in_parts({.pipeline = 2});
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), mesh,
                             divided(mesh, {"--trainer.max_steps", "15", "--trainer.callbacks+=ModelCheckpoint",
                                            "--trainer.callbacks.every_n_train_steps", "5",
                                            "--trainer.callbacks+=ProbeSaves", "--trainer.callbacks.nan_step", "10"}));
  for (const Finished& run : runs) CHECK(run.exit_code != 0);
  CHECK(says(runs[0].err, "is not finite"));
  CHECK(fulgur::summarize_checkpoint(last_checkpoint(folder.path())).global_step == 5);
}

TEST_CASE("mesh in parts: with an axis data alone there are no parts") {
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), in_parts({.data = 2, .pipeline = 1}),
                             kMeshAdam + Arguments{"--model", "ProbeStages", "--trainer.max_steps", "2"});
  for (const Finished& run : runs) CHECK(run.exit_code == 2);
  CHECK(says(runs[0].err, "ranks divide nothing that they could write parts of"));
}

TEST_CASE("mesh in parts: on GPUs, the same content as a full checkpoint, over NCCL", "[gpu]") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 1, .tensor = 2});
  require_gpus(2);
  const TemporaryFolder full, parts;
  const Arguments options = divided(mesh, {"--trainer.max_steps", "6", "--trainer.accelerator", "cuda"});
  CHECK(same_content(trained_mesh(full, mesh, options), trained_mesh(parts, in_parts(mesh), options)));
}

}  // namespace mesh_parts_test
