// mesh: pipelines and shares of the data compute what one process does on the batches of all.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <cmath>

#include "checkpoint_contents.h"
#include "fulgur/core/text/text.h"
#include "mesh_runs.h"
#include "support/combinations.h"
#include "support/gpu.h"

namespace mesh_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

Arguments layers(const Arguments& more) { return kMeshAdam + Arguments{"--model", "ProbeStages"} + more; }

}  // namespace

TEST_CASE("mesh: a GPT's losses are those of one process") {
  const TemporaryFolder text, one;
  const Arguments options = mesh_gpt(text, {"--trainer.max_steps", all_combinations() ? "100" : "40"});
  const auto expected = trained_alone(one, options);
  const auto losses = column(one.path(), "mean_loss");
  for (const Mesh& mesh : {Mesh{.pipeline = 2}, {.pipeline = 4}, {.data = 2, .pipeline = 2}})
    for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}) {
      Mesh scheduled = mesh;
      scheduled.schedule = schedule;
      CAPTURE(mesh.data, mesh.pipeline, schedule);
      const TemporaryFolder many;
      const auto found = trained_mesh(many, scheduled, options);
      CHECK(largest_difference(losses, column(many.path(), "mean_loss")) < 1e-4);
      CHECK(difference(expected, found) < 1e-3);
    }
}

TEST_CASE("mesh: rotary positions, RMS norm and recomputed activations work in stages too") {
  const TemporaryFolder text, one, many;
  const Arguments options =
      mesh_gpt(text, {"--model.positions", "rotary", "--model.norm", "rms", "--model.mlp", "swiglu", "--model.bias",
                      "false", "--model.activation_checkpointing", "every_2", "--trainer.max_steps", "30"});
  trained_alone(one, options);
  trained_mesh(many, {.pipeline = 2, .schedule = GENERATE("1f1b", "zero_bubble")}, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-4);
}

TEST_CASE("mesh: an MlpClassifier in stages") {
  const TemporaryFolder one, many;
  const Arguments options = kMeshAdam + Arguments{"--model",
                                                  "MlpClassifier",
                                                  "--model.hidden",
                                                  "[16, 16, 16]",
                                                  "--data",
                                                  "SyntheticDataModule",
                                                  "--data.batch_size",
                                                  "8",
                                                  "--trainer.max_steps",
                                                  "20",
                                                  "--trainer.log_every_n_steps",
                                                  "1"};
  trained_alone(one, options);
  trained_mesh(many, {.pipeline = 4, .schedule = "zero_bubble"}, options);
  CHECK(largest_difference(column(one.path(), "train_loss"), column(many.path(), "train_loss")) < 1e-5);
}

TEST_CASE("mesh: clipping by the norm of all stages, accumulation, and shorter last batches and windows") {
  const auto [more, schedule] = GENERATE(from_range(combinations<Arguments, std::string>(
      {{"--trainer.gradient_clip_val", "0.05", "--trainer.log_grad_norm", "true"},
       {"--trainer.gradient_clip_val", "0.01", "--trainer.gradient_clip_algorithm", "value"},
       {"--trainer.accumulate_grad_batches", "3"},
       // The last batch of an epoch has five samples, and the last window two batches.
       {"--data.num_train", "61", "--trainer.accumulate_grad_batches", "3"},
       {"--model.ties", "true", "--trainer.gradient_clip_val", "0.05"},
       // Hooks see the batch and the gradients as they do elsewhere.
       {"--model.shuffles", "true", "--model.drops", "true"},
       {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan"}},
      {"1f1b", "interleaved_1f1b", "zero_bubble"})));
  const TemporaryFolder one, many;
  const Arguments options = layers(more + Arguments{"--trainer.max_steps", "30"});
  const auto expected = trained_alone(one, options);
  const auto found = trained_mesh(many, {.pipeline = 2, .schedule = schedule}, options);
  CHECK(difference(expected, found) < 1e-5);
  CHECK(largest_difference(column(one.path(), "loss_step"), column(many.path(), "loss_step")) < 1e-5);
}

TEST_CASE("mesh: an interrupted run continues to the bit, and its checkpoint is that of any other strategy") {
  // At step 1, the run is inside an accumulation window.
  const auto [data, schedule, cut_at] =
      GENERATE(from_range(combinations<int, std::string, std::string>({1, 2}, {"1f1b", "zero_bubble"}, {"1", "7"})));
  const Mesh mesh{.data = data, .pipeline = 2, .schedule = schedule};
  const Arguments options =
      layers({"--model.dropout", mesh.data == 2 ? "0.2" : "0", "--model.ties", "true", "--model.scales", "true",
              "--model.shuffles", "true", "--trainer.accumulate_grad_batches", "2", "--trainer.max_epochs", "3"});
  const TemporaryFolder whole, parts;
  const auto expected = trained_mesh(whole, mesh, options);
  interrupt_mesh(parts.path(), mesh, options, cut_at);
  const TemporaryFolder other;
  fs::copy(parts.path(), other.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  if (cut_at == "1") {
    // The gradients are those of the stages of their ranks.
    const auto is_refused = [&](const Mesh& divided) {
      const auto runs = fit_mesh(other.path(), divided, options + Arguments{"--resume", "--allow-config-change"});
      UNSCOPED_INFO(runs[0].err);
      return std::ranges::all_of(runs, [](const Finished& run) { return run.exit_code == 4; }) &&
             says(runs[0].err, "was saved between a backward and its step");
    };
    CHECK(is_refused({.data = mesh.data, .pipeline = 2, .schedule = "interleaved_1f1b"}));
    CHECK(is_refused({.data = mesh.data, .pipeline = 2, .more = {"--trainer.strategy.cuts", "[layer1]"}}));
    Arguments alone = probe("fit", 2, 8, options + Arguments{"--resume", "--allow-config-change"});
    *std::ranges::find(alone, "ddp") = "mesh";
    CHECK(all_exit(run_ranks({.count = 2, .folder = other.path()}, alone), 4));
  }
  REQUIRE(all_exit(fit_mesh(parts.path(), mesh, options + Arguments{"--resume"}), 0));
  CHECK(same_bits(expected, last_checkpoint(parts.path())));
  CHECK(same_states(expected, last_checkpoint(parts.path())));
}

TEST_CASE("mesh: the means of a log window, and hooks, continue if a run resumes with another mesh") {
  const Arguments options = layers({"--trainer.max_epochs", "3", "--trainer.log_every_n_steps", "5", "--data.num_train",
                                    "56", "--model.shuffles", "true"});
  const Arguments cut{"--trainer.agree_every",
                      "1",
                      "--trainer.callbacks+=ProbeCallback",
                      "--trainer.callbacks.signal_rank",
                      "0",
                      "--trainer.callbacks.signal_step",
                      "8"};
  const TemporaryFolder whole, parts;
  trained_alone(whole, options);
  // From one process to a pipeline of two ranks, and to one of three.
  REQUIRE(all_exit(fit_alone(parts.path(), options + cut), 75));
  const Arguments more = options + Arguments{"--resume", "--allow-config-change"};
  const int first = GENERATE(2, 3);
  Arguments again = more + cut;
  again.back() = "13";
  REQUIRE(all_exit(fit_mesh(parts.path(), {.pipeline = first}, again), 75));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.pipeline = 5 - first}, more), 0));
  CHECK(largest_difference(column(whole.path(), "loss_step"), column(parts.path(), "loss_step")) < 1e-5);
  CHECK(largest_difference(column(whole.path(), "loss_epoch"), column(parts.path(), "loss_epoch")) < 1e-5);
}

TEST_CASE("mesh: any number of micro-batches, and batches that have fewer samples") {
  const Arguments options = layers({"--trainer.max_epochs", "2", "--data.num_train", GENERATE("44", "5")});
  const std::string micro_batches = GENERATE("3", "7", "16");
  const TemporaryFolder one, many, parts;
  const auto expected = trained_alone(one, options);
  const auto runs = fit_mesh(many.path(), {.micro_batches = micro_batches}, options);
  REQUIRE(all_exit(runs, 0));
  CHECK(difference(expected, last_checkpoint(many.path())) < 1e-5);
  CHECK(says(runs[0].err, "[strategies.fewer_micro_batches]") ==
        (micro_batches == "16" || (micro_batches == "7" && options.back() == "5")));
  if (micro_batches == "16") {
    CHECK(says(runs[0].err, fulgur::cat("a batch of ", options.back() == "5" ? 5 : 8,
                                        " samples has as many micro-batches, and a bubble of ")));
    CHECK(says(runs[0].err, "not micro_batches: 16"));
  }
  // The first batch after a resume may be the short one.
  if (options.back() == "5") return;
  const Arguments cut{"--trainer.agree_every",
                      "1",
                      "--trainer.callbacks+=ProbeCallback",
                      "--trainer.callbacks.signal_rank",
                      "1",
                      "--trainer.callbacks.signal_step",
                      "4"};
  REQUIRE(all_exit(fit_mesh(parts.path(), {.micro_batches = micro_batches}, options + cut), 75));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.micro_batches = micro_batches}, options + Arguments{"--resume"}), 0));
  CHECK(same_bits(last_checkpoint(many.path()), last_checkpoint(parts.path())));
}

TEST_CASE("mesh: averaged weights are validated, of layers that ranks compute together") {
  const TemporaryFolder one, many;
  const Arguments more{
      "--trainer.max_steps",       "12", "--trainer.val_check_interval", "3", "--trainer.callbacks+=WeightAveraging",
      "--trainer.callbacks.decay", "0.5"};
  trained_alone(one, mesh_gpt(one, more));
  trained_mesh(many, {.pipeline = GENERATE(1, 2), .tensor = 2}, mesh_gpt(many, more));
  CHECK(largest_difference(column(one.path(), "val_loss"), column(many.path(), "val_loss")) < 1e-4);
}

TEST_CASE("mesh: averaged weights are validated, of all stages") {
  const Arguments options = layers({"--trainer.max_steps", "12", "--trainer.val_check_interval", "3",
                                    "--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.decay", "0.5"});
  const TemporaryFolder one, many;
  trained_alone(one, options);
  trained_mesh(many, {.data = GENERATE(1, 2), .pipeline = 2}, options);
  CHECK(largest_difference(column(one.path(), "val_loss"), column(many.path(), "val_loss")) < 1e-5);
}

TEST_CASE("mesh: a checkpoint of a pipeline is continued by one process, and the other way round") {
  const TemporaryFolder whole, parts;
  const Arguments options = layers({"--data.num_train", "96"});
  const auto expected = trained_alone(whole, options + Arguments{"--trainer.max_steps", "24"});
  const auto to = [&](const char* steps) {
    return options + Arguments{"--trainer.max_steps", steps, "--resume", "--allow-config-change"};
  };
  REQUIRE(all_exit(fit_mesh(parts.path(), {.pipeline = 2}, options + Arguments{"--trainer.max_steps", "5"}), 0));
  REQUIRE(all_exit(fit_alone(parts.path(), to("10")), 0));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.data = 2, .pipeline = 2, .schedule = "zero_bubble"}, to("17")), 0));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.pipeline = 3}, to("24")), 0));
  CHECK(difference(expected, last_checkpoint(parts.path())) < 1e-5);
}

TEST_CASE("mesh: batch norm of one stage, validation of the whole module, and a loss that all ranks know") {
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), {.data = 2, .pipeline = 2, .micro_batches = "2"},
                             layers({"--model.norm", "true", "--trainer.max_epochs", "2"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(column(folder.path(), "val_loss").size() == 2);
  const auto losses_of = [&](size_t rank) { return lines_of(folder.path(), runs, rank, "loss known here: "); };
  REQUIRE_FALSE(losses_of(0).empty());
  // Ranks 0 and 2 are a pipeline, as 1 and 3 are.
  CHECK(losses_of(0) == losses_of(2));
  CHECK(losses_of(1) == losses_of(3));
  CHECK(losses_of(0) != losses_of(1));
}

TEST_CASE("mesh: what cannot be divided is refused, with the reason") {
  const auto message = [&](const Mesh& mesh, const Arguments& more) {
    const TemporaryFolder folder;
    const auto runs = fit_mesh(folder.path(), mesh, more + Arguments{"--trainer.max_steps", "4"});
    for (const Finished& run : runs) CHECK(run.exit_code != 0);
    return runs[0].err;
  };
  const Arguments plain = layers({});
  CHECK(says(message({.pipeline = 3, .more = {"--trainer.strategy.mesh.pipeline", "2"}}, plain),
             "mesh.pipeline: 2 does not fit the 3 ranks of the run"));
  CHECK(says(message({.pipeline = 2, .more = {"--trainer.strategy.mesh.data", "2"}}, plain),
             "the axes of the mesh have 2 (data) × 2 (pipeline) = 4 ranks, and the run has 2"));
  CHECK(says(message({.pipeline = 4}, layers({"--model.layers", "1"})), "4 stages need at least as many layers"));
  CHECK(says(message({.schedule = "interleaved_1f1b", .micro_batches = "5"}, plain),
             "micro_batches must be a multiple of mesh.pipeline"));
  CHECK(says(message({.more = {"--trainer.strategy.cuts", "[layer9]"}}, plain),
             "the module has no layer 'layer9'. Its layers are: first, layer0"));
  CHECK(says(message({.more = {"--trainer.strategy.cuts", "[layer1, last]"}}, plain), "2 stages need 1 cut"));
  CHECK(says(message({.more = {"--trainer.strategy.stages_per_rank", "2"}}, plain), "Use schedule: interleaved_1f1b"));
  CHECK(says(message({}, {"--optimizer", "LBFGS", "--model", "ProbeStages"}), "which LBFGS cannot"));
  CHECK(says(message({}, layers({"--model.manual", "true"})), "manual optimization"));
  CHECK(says(message({}, layers({"--adapters.target", "[first]"})), "whose adapter does not work with a pipeline"));
  CHECK(says(message({}, layers({"--model.forgets", "true"})), "names these parameters: layer1.weight"));
  CHECK(
      says(message({}, layers({"--model.trouble", "read_all"})), "'layer2.weight' belongs to rank 1 of the pipeline"));
  CHECK(says(message({}, layers({"--model.chooses_shapes", "true"})), "returned other shapes"));
  const auto mistaken = [&](const std::string& mistake) {
    return message({.more = {"--trainer.strategy.cuts", "[layer3]"}}, layers({"--model.mistake", mistake}));
  };
  CHECK(says(mistaken("in_place"), "the layer 'layer2' of the module's stages() has changed its arguments in place"));
  CHECK(says(mistaken("undefined"), "the layer 'layer2' of the module's stages() returned an undefined tensor"));
  CHECK(says(mistaken("fails"), "the layer 'layer2' of the module's stages() failed (micro-batch 0, which gave it"));
  const TemporaryFolder folder;
  const auto counts = fit_mesh(folder.path(), {}, layers({"--model.mistake", "counts"}));
  CHECK(says(counts[1].err, "the buffer 'count' was changed in a step by rank 1 of the pipeline"));
  CHECK(says(message({}, kMeshAdam), "the layers that the module's stages() returns, and it returns none"));
  CHECK(says(message({}, plain + Arguments{"--trainer.auto_micro_batch", "true"}), "auto_micro_batch"));
}

TEST_CASE("mesh: gradients are averaged while backward computes") {
  // The first rank along tensor averages what they all have.
  Mesh mesh{.data = 2, .pipeline = 2, .schedule = GENERATE("1f1b", "gpipe", "zero_bubble"), .micro_batches = "1"};
  mesh.more = {"--trainer.strategy.cuts", "[layer2]"};
  const Mesh in_layers{
      .data = 2, .pipeline = 1, .more = {"--trainer.strategy.tensor_plan", "{first: gathered_column}"}, .tensor = 2};
  const Mesh of = GENERATE_COPY(mesh, in_layers);
  CAPTURE(of.schedule, of.pipeline);
  const Arguments model{"--optimizer",         "SGD", "--model", "ProbeStages", "--model.width", "256",
                        "--trainer.max_steps", "3"};
  const TemporaryFolder quiet, waits;
  CHECK(same_content(trained_mesh(quiet, of, model),
                     trained_mesh(waits, of, model + Arguments{"--model.awaits_average", std::to_string(of.tensor)})));
}

TEST_CASE("mesh: gradients that share memory are averaged apart") {
  const Mesh mesh = GENERATE(Mesh{.data = 2, .pipeline = 2, .micro_batches = "1"},
                             Mesh{.data = 2,
                                  .pipeline = 1,
                                  .more = {"--trainer.strategy.tensor_plan", "{first: gathered_column}"},
                                  .tensor = 2});
  CAPTURE(mesh.pipeline);
  const Arguments model{"--optimizer",
                        "SGD",
                        "--optimizer.lr",
                        "0.1",
                        "--model",
                        "ProbeStages",
                        "--model.width",
                        "256",
                        "--model.adds",
                        "true",
                        "--trainer.max_steps",
                        "3",
                        "--trainer.precision",
                        "64-true"};
  const TemporaryFolder one, many;
  CHECK(difference(trained_alone(one, model), trained_mesh(many, mesh, model)) < 1e-10);
}

TEST_CASE("mesh: a rank that dies ends the others within the timeout") {
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), {.pipeline = 2}, layers({"--model.trouble", "kill"}));
  CHECK(runs[1].exit_code == 9);
  CHECK(runs[0].exit_code == 5);
}

TEST_CASE("mesh: stages named by cuts begin with these layers") {
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), {.pipeline = 2, .more = {"--trainer.strategy.cuts", "[layer3]"}},
                             layers({"--trainer.max_steps", "2"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "stages first … layer2 | layer3 … last"));
}

TEST_CASE("mesh: without a pipeline, the ranks are those of ddp") {
  const TemporaryFolder one, many;
  const auto expected = trained_alone(one, kMeshAdam + Arguments{"--trainer.max_steps", "20"});
  Arguments arguments = probe("fit", 2, 8, kMeshAdam + Arguments{"--trainer.max_steps", "20"});
  *std::ranges::find(arguments, "ddp") = "mesh";
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = many.path()}, arguments), 0));
  CHECK(difference(expected, last_checkpoint(many.path())) < 1e-6);
}

// Hidden, since a busy machine makes steps longer; docs/performance.md has its results.
TEST_CASE("mesh: the bubble on stages that sleep is the closed form", "[.bubble]") {
  const auto& [schedule, closed] = GENERATE(table<std::string, double>(
      {{"gpipe", 3.0 / 11}, {"1f1b", 3.0 / 11}, {"interleaved_1f1b", 3.0 / 19}, {"zero_bubble", 3.0 / 27}}));
  const bool takes_turns = schedule == "interleaved_1f1b";
  // Messages take a millisecond or two, which counts more where the bubble is smaller.
  const double sleep_ms = takes_turns ? 200 : schedule == "zero_bubble" ? 450 : 150;
  const TemporaryFolder folder;
  // Each stage has one layer that sleeps.
  const auto runs = fit_mesh(
      folder.path(),
      {.pipeline = 4,
       .schedule = schedule,
       .micro_batches = "8",
       .more = {"--trainer.strategy.cuts",
                takes_turns ? "[layer1, layer2, layer3, layer4, layer5, layer6, layer7]" : "[layer1, layer2, layer3]"}},
      layers({"--model.layers", takes_turns ? "8" : "4", "--model.sleep_ms", std::to_string(sleep_ms),
              "--trainer.max_steps", "4"}));
  REQUIRE(all_exit(runs, 0));
  // Rank 0 has the first action of a step and the last one. A sleep that takes longer counts as work.
  const auto of_first = lines_of(folder.path(), runs, 0, "a step took ");
  REQUIRE(of_first.size() == 4);
  double took = 1e9, slept = 0;
  for (size_t step = 0; step < of_first.size(); ++step) {
    if (std::stod(of_first[step]) >= took) continue;
    took = std::stod(of_first[step]);
    slept = 0;
    for (size_t rank = 0; rank < 4; ++rank)
      slept += std::stod(lines_of(folder.path(), runs, rank, "of which it slept ").at(step)) / 4;
  }
  const double bubble = 1 - slept / took;
  WARN(schedule << ": a step of " << took << " ms, bubble " << bubble << ", closed form " << closed);
  CHECK(std::abs(bubble - closed) < 0.05 * closed);
}

TEST_CASE("mesh: on GPUs the ranks compute what one process does, over NCCL", "[gpu]") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 2}, Mesh{.pipeline = 2, .schedule = "zero_bubble"},
                             Mesh{.data = 2, .pipeline = 2, .schedule = "interleaved_1f1b"});
  require_gpus(mesh.ranks());
  const TemporaryFolder text, one, many;
  const Arguments options =
      mesh_gpt(text, {"--trainer.max_steps", all_combinations() ? "100" : "30", "--trainer.accelerator", "cuda"});
  trained_alone(one, options + Arguments{"--trainer.devices", "1"});
  trained_mesh(many, mesh, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-4);
}

}  // namespace mesh_test
