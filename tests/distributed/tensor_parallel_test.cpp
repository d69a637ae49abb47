// mesh with an axis `tensor`: ranks that compute each layer together compute what one process does.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include "mesh_runs.h"
#include "support/combinations.h"
#include "support/gpu.h"

namespace tensor_parallel_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const std::string kPlan = "{embedding: vocabulary, up: column, down: row, head: gathered_column}";

Arguments wide(const Arguments& more = {}) {
  return kMeshAdam + Arguments{"--model", "ProbeTensor", "--trainer.log_every_n_steps", "1"} + more;
}

Mesh planned(Mesh mesh, const std::string& plan = kPlan) {
  mesh.more = mesh.more + Arguments{"--trainer.strategy.tensor_plan", plan};
  return mesh;
}

// Heads, and more classes than ranks, for up to eight ranks.
Arguments wide_gpt(const TemporaryFolder& folder, const Arguments& more = {}) {
  return mesh_gpt(folder, Arguments{"--model.n_head", "8", "--model.vocab_size", "15"} + more);
}

// The parameters that a rank has, by its log.
int64_t parameters_of(const fs::path& root, const std::vector<Finished>& runs, size_t rank) {
  const auto lines = lines_of(root, runs, rank, "parameters here: ");
  REQUIRE(lines.size() == 1);
  return std::stoll(lines[0]);
}

void check_gpt_meshes(const std::vector<Mesh>& meshes) {
  const TemporaryFolder text, one;
  const Arguments options = wide_gpt(text, {"--trainer.max_steps", all_combinations() ? "100" : "40"});
  const auto alone = fit_alone(one.path(), options);
  REQUIRE(all_exit(alone, 0));
  const auto losses = column(one.path(), "mean_loss");
  const int64_t all = parameters_of(one.path(), alone, 0);
  for (const Mesh& mesh : meshes) {
    CAPTURE(mesh.data, mesh.shard, mesh.tensor, mesh.pipeline, mesh.micro_batches);
    const TemporaryFolder many;
    const auto runs = fit_mesh(many.path(), mesh, options);
    REQUIRE(all_exit(runs, 0));
    CHECK(largest_difference(losses, column(many.path(), "mean_loss")) < 1e-4);
    CHECK(difference(last_checkpoint(one.path()), last_checkpoint(many.path())) < 1e-3);
    // Norms, biases of rows and positions are whole.
    if (mesh.tensor > 1)
      CHECK(static_cast<double>(parameters_of(many.path(), runs, 1)) <
            static_cast<double>(all) * (1.0 / mesh.tensor + 0.1));
  }
}

}  // namespace

TEST_CASE("tensor: a GPT's losses on every mesh of two ranks are those of one process") {
  check_gpt_meshes(meshes_of(2));
}

TEST_CASE("tensor: a GPT's losses on every mesh of four ranks are those of one process") {
  check_gpt_meshes(meshes_of(4));
}

TEST_CASE("tensor: a GPT's losses on meshes of eight ranks along three axes are those of one process") {
  std::vector<Mesh> meshes = meshes_of(8);
  std::erase_if(meshes, [](const Mesh& mesh) {
    return std::max({mesh.data, mesh.shard, mesh.tensor, mesh.pipeline}) > 2;
  });
  CHECK(meshes.size() == 4);
  check_gpt_meshes(meshes);
}

// Not run by default, since it takes minutes.
TEST_CASE("tensor: a GPT's losses on every mesh of eight ranks are those of one process", "[.all]") {
  check_gpt_meshes(meshes_of(8));
}

TEST_CASE("tensor: Llama's parts, groups of heads, and recomputed activations") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 1, .tensor = 2}, Mesh{.pipeline = 2, .tensor = 2});
  const TemporaryFolder text, one, many;
  const Arguments options =
      wide_gpt(text, {"--model.positions", "rotary", "--model.norm", "rms", "--model.mlp", "swiglu", "--model.bias",
                      "false", "--model.n_kv_head", "2", "--model.tie_weights", "false",
                      "--model.activation_checkpointing", "every_2", "--trainer.max_steps", "30"});
  const auto expected = trained_alone(one, options);
  const auto found = trained_mesh(many, mesh, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-4);
  CHECK(difference(expected, found) < 1e-3);
}

TEST_CASE("tensor: a module of LibTorch's layers, divided by a plan in YAML") {
  using Planned = std::pair<Arguments, std::string>;
  const auto [mesh, planned_options] = GENERATE(from_range(combinations<Mesh, Planned>(
      {{.pipeline = 1, .tensor = 2},
       {.pipeline = 1, .tensor = 4},
       {.data = 2, .pipeline = 1, .tensor = 2},
       {.pipeline = 2, .tensor = 2}},
      {{Arguments{}, "{embedding: vocabulary, up: column, down: row}"},
       {{"--model.deep", "true"}, "{up: column, down: row, norm: sequence}"},
       {{"--model.deep", "true"}, "{up: column, down: row, head: whole}"},
       {{"--model.deep", "true", "--model.gates", "true"}, "{up: column, down: row}"},
       {{"--model.deep", "true", "--model.trouble", "slices_rows"}, "{up: column, down: row}"},
       {{"--model.in_classes", "true"}, "{up: column, down: row, head: vocabulary}"},
       {{"--model.in_classes", "true", "--model.deep", "true"}, "{up: column, down: row, head: vocabulary}"},
       {{"--model.in_classes", "true", "--model.deep", "true"}, "{up: column, down: row, head: gathered_column}"},
       {{"--model.in_classes", "true", "--model.deep", "true", "--model.ties", "true"},
        "{'*ed*g': vocabulary, up: column, down: row, head: vocabulary}"}})));
  const auto& [more, plan] = planned_options;
  CAPTURE(mesh.data, mesh.tensor, mesh.pipeline, plan);
  const TemporaryFolder one, many;
  const Arguments options = wide(more + Arguments{"--trainer.max_steps", "20"});
  const auto expected = trained_alone(one, options);
  const auto runs = fit_mesh(many.path(), planned(mesh, plan), options);
  REQUIRE(all_exit(runs, 0));
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-5);
  CHECK(difference(expected, last_checkpoint(many.path())) < 1e-5);
  CHECK(column(one.path(), "samples") == column(many.path(), "samples"));
  const std::string rows = std::to_string(24 / mesh.tensor);
  for (size_t rank = 0; rank < static_cast<size_t>(mesh.tensor); ++rank)
    CHECK(says(lines_of(many.path(), runs, rank, "of up: ").at(0), rows));
}

TEST_CASE("tensor: norms, dropout and residual sums of a part of the tokens") {
  const auto [axes, more] = GENERATE(from_range(combinations<Mesh, Arguments>(
      {{.pipeline = 1, .tensor = 2},
       {.data = 2, .pipeline = 1, .tensor = 2},
       {.pipeline = 2, .tensor = 2},
       {.pipeline = 1, .tensor = 4}},
      {{"--model.activation_checkpointing", "every_2"}, {"--model.positions", "rotary", "--model.norm", "rms"}})));
  const Mesh mesh = planned(axes, "{'*.ln_?': sequence}");
  CAPTURE(mesh.data, mesh.tensor, mesh.pipeline, more);
  const TemporaryFolder text, one, many;
  const Arguments options = wide_gpt(text, more + Arguments{"--trainer.max_steps", "30"});
  const auto expected = trained_alone(one, options);
  const auto found = trained_mesh(many, mesh, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-4);
  CHECK(difference(expected, found) < 1e-3);
}

TEST_CASE("tensor: with sequence, a rank has its part of the tokens, if the ranks divide them") {
  const Arguments options = wide({"--model.deep", "true", "--trainer.max_steps", "3"});
  const auto tokens = [&](const std::string& plan, int ranks, int shard = 1) {
    const TemporaryFolder folder;
    const auto runs = fit_mesh(folder.path(), planned({.pipeline = 1, .tensor = ranks, .shard = shard}, plan), options);
    REQUIRE(all_exit(runs, 0));
    return lines_of(folder.path(), runs, 1, "tokens of the norm: ").at(0);
  };
  CHECK(tokens("{up: column, down: row}", 2) == "2");
  CHECK(tokens("{up: column, down: row, norm: sequence}", 2) == "1");
  CHECK(tokens("{up: column, down: row, norm: sequence}", 4) == "2");
  // The memory of the norm is away between steps.
  CHECK(tokens("{up: column, down: row, norm: sequence}", 2, /*shard=*/2) == "1");
}

TEST_CASE("tensor: clipping by the norm of all parts, accumulation, shorter windows, skipped steps and validation") {
  const auto [mesh, more] = GENERATE(from_range(combinations<Mesh, Arguments>(
      {{.pipeline = 1, .tensor = 2}, {.data = 2, .pipeline = 1, .tensor = 2}, {.pipeline = 2, .tensor = 2}},
      {{"--trainer.gradient_clip_val", "0.05", "--trainer.log_grad_norm", "true"},
       {"--trainer.gradient_clip_val", "0.01", "--trainer.gradient_clip_algorithm", "value"},
       {"--trainer.accumulate_grad_batches", "3"},
       // The last batch of an epoch has five samples, and the last window two batches.
       {"--data.num_train", "61", "--trainer.accumulate_grad_batches", "3"},
       {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan"},
       {"--trainer.val_check_interval", "3"}})));
  CAPTURE(mesh.data, mesh.pipeline, more);
  if (mesh.data > 1 && more[0] == "--data.num_train") {
    SUCCEED("the shares of such a batch are not even");
    return;
  }
  const TemporaryFolder one, many;
  const Arguments options = wide(more + Arguments{"--trainer.max_steps", "30"});
  const auto expected = trained_alone(one, options);
  const auto found = trained_mesh(many, planned(mesh), options);
  CHECK(difference(expected, found) < 1e-5);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-5);
  if (more[0] == "--trainer.val_check_interval")
    CHECK(largest_difference(column(one.path(), "val_out"), column(many.path(), "val_out")) < 1e-5);
  if (more.size() > 2 && more[2] == "--trainer.log_grad_norm")
    CHECK(largest_difference(column(one.path(), "grad_norm"), column(many.path(), "grad_norm")) < 1e-5);
}

TEST_CASE("tensor: an interrupted run continues to the bit") {
  // At step 1, the run is inside an accumulation window.
  const auto [axes, cut_at] = GENERATE(from_range(combinations<Mesh, std::string>(
      {{.pipeline = 1, .tensor = 2}, {.data = 2, .pipeline = 1, .tensor = 2}, {.pipeline = 2, .tensor = 2}},
      {"1", "7"})));
  const Mesh mesh = planned(axes);
  CAPTURE(mesh.data, mesh.pipeline, cut_at);
  const Arguments options =
      wide({"--model.dropout", "0.2", "--trainer.accumulate_grad_batches", "2", "--trainer.max_epochs", "3"});
  const TemporaryFolder whole, parts;
  const auto expected = trained_mesh(whole, mesh, options);
  interrupt_mesh(parts.path(), mesh, options, cut_at);
  if (cut_at == "1") {
    // The gradients are divided as the plan says.
    const TemporaryFolder other;
    fs::copy(parts.path(), other.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    Mesh divided = mesh;
    divided.more.back() = "{up: gathered_column}";
    const auto runs = fit_mesh(other.path(), divided, options + Arguments{"--resume", "--allow-config-change"});
    CHECK(all_exit(runs, 4));
    CHECK(says(runs[0].err, "with another tensor_plan"));
    if (mesh.pipeline == 1) {
      const TemporaryFolder alone;
      fs::copy(parts.path(), alone.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      const Finished one = trainer(probe("fit", 1, 12, options + Arguments{"--resume", "--allow-config-change"}),
                                   {.folder = alone.path(), .environment = {"OMP_NUM_THREADS=1"}});
      CHECK(one.exit_code == 4);
      CHECK(says(one.err, "of which each had a part of the gradients"));
    }
  }
  REQUIRE(all_exit(fit_mesh(parts.path(), mesh, options + Arguments{"--resume"}), 0));
  CHECK(same_bits(expected, last_checkpoint(parts.path())));
  CHECK(same_states(expected, last_checkpoint(parts.path())));
}

TEST_CASE("tensor: checkpoints are those of one process, and of any mesh and strategy") {
  const TemporaryFolder whole, parts;
  const Arguments options = wide({"--data.num_train", "96"});
  const auto expected = trained_alone(whole, options + Arguments{"--trainer.max_steps", "24"});
  const auto to = [&](const char* steps) {
    return options + Arguments{"--trainer.max_steps", steps, "--resume", "--allow-config-change"};
  };
  REQUIRE(all_exit(
      fit_mesh(parts.path(), planned({.pipeline = 1, .tensor = 2}), options + Arguments{"--trainer.max_steps", "5"}),
      0));
  REQUIRE(all_exit(fit_alone(parts.path(), to("8")), 0));
  REQUIRE(all_exit(fit_mesh(parts.path(), planned({.pipeline = 2, .tensor = 2}), to("12")), 0));
  // The same ranks with fsdp.
  Arguments fsdp = probe("fit", 2, 8, to("16"));
  *std::ranges::find(fsdp, "ddp") = "fsdp";
  REQUIRE(all_exit(
      run_ranks({.count = 2, .folder = parts.path()}, fsdp + Arguments{"--trainer.strategy.sharding", "parameters"}),
      0));
  REQUIRE(all_exit(fit_mesh(parts.path(), planned({.data = 2, .pipeline = 1, .tensor = 2}), to("20")), 0));
  REQUIRE(all_exit(fit_mesh(parts.path(), {.pipeline = 2}, to("24")), 0));
  CHECK(difference(expected, last_checkpoint(parts.path())) < 1e-5);
}

TEST_CASE("tensor: dropout draws the same numbers for what all ranks have, and others for their parts") {
  const TemporaryFolder folder;
  const Mesh mesh = planned({.data = 2, .pipeline = 1, .tensor = 2});
  const auto runs = fit_mesh(folder.path(), mesh,
                             wide({"--model.dropout", "0.25", "--model.shows_masks", "true", "--model.hidden", "64",
                                   "--trainer.max_steps", "20"}));
  REQUIRE(all_exit(runs, 0));
  const auto masks = [&](size_t rank, const char* of) { return lines_of(folder.path(), runs, rank, of); };
  // Ranks 0 and 1 have one share of the data, 2 and 3 the other.
  CHECK(masks(0, "mask of all: ") == masks(1, "mask of all: "));
  CHECK(masks(2, "mask of all: ") == masks(3, "mask of all: "));
  const auto all = masks(0, "mask of all: "), others = masks(2, "mask of all: ");
  REQUIRE(all.size() == 20);
  std::set<std::string> different;
  double kept = 0, numbers = 0;
  for (size_t rank = 0; rank < 4; ++rank)
    for (const std::string& mask : masks(rank, "mask of parts: ")) {
      different.insert(mask);
      kept += static_cast<double>(std::ranges::count(mask, '1'));
      numbers += static_cast<double>(mask.size());
    }
  CHECK(different.size() == 80);
  // Of 80 masks of 4 · 32 values.
  REQUIRE(numbers == 80 * 4 * 32);
  CHECK(std::abs(kept / numbers - 0.75) < 5 * std::sqrt(0.25 * 0.75 / numbers));
  for (size_t step = 0; step < all.size(); ++step) CHECK(all[step] != others[step]);
  // What two ranks keep of their parts is independent.
  double both = 0;
  const auto first = masks(0, "mask of parts: "), second = masks(1, "mask of parts: ");
  for (size_t step = 0; step < first.size(); ++step)
    for (size_t i = 0; i < first[step].size(); ++i) both += first[step][i] == '1' && second[step][i] == '1';
  CHECK(std::abs(both / (numbers / 4) - 0.5625) < 5 * std::sqrt(0.5625 * 0.4375 / (numbers / 4)));
}

TEST_CASE("tensor: what cannot be divided is refused, with the reason") {
  const auto message = [&](const Mesh& mesh, const Arguments& more) {
    const TemporaryFolder folder;
    const auto runs = fit_mesh(folder.path(), mesh, more + Arguments{"--trainer.max_steps", "4"});
    for (const Finished& run : runs) CHECK(run.exit_code != 0);
    return runs[0].err;
  };
  const Mesh two{.pipeline = 1, .tensor = 2};
  const TemporaryFolder text;
  Mesh three = two;
  three.tensor = 3;
  CHECK(says(message(three, mesh_gpt(text, {"--model.n_head", "2"})), "has 2 n_head, which mesh.tensor: 3 does not"));
  CHECK(says(message(two, mesh_gpt(text, {"--model.n_kv_head", "1"})), "has 1 n_kv_head, which mesh.tensor: 2 does"));
  Mesh six{.pipeline = 1, .more = {"--trainer.strategy.mesh.tensor", "2"}, .tensor = 3};
  CHECK(says(message(six, wide()), "mesh.tensor: 2 does not fit the 3 ranks"));
  CHECK(says(message(two, wide()), "there are no rules"));
  CHECK(says(message(planned(two, "{upp: column}"), wide()), "'upp' matches none. The layers are embedding, up, down"));
  const std::string many = message(planned(two, "{upp: column}"), mesh_gpt(text));
  CHECK(says(many, "matches none. The layers are "));
  CHECK(says(many, " more."));
  CHECK(
      says(message(planned(two, "{up: column, 'u*': row}"), wide()), "Write patterns of which each layer matches one"));
  CHECK(says(message(planned(two, "{norm: column}"), wide()), "divides linear layers and embeddings"));
  CHECK(says(message(planned(two, "{up: column}"), wide({"--model.hidden", "5"})),
             "has 5 outputs, which mesh.tensor: 2"));
  CHECK(
      says(message(planned(two, "{down: row}"), wide({"--model.hidden", "5"})), "has 5 inputs, which mesh.tensor: 2"));
  CHECK(says(message(planned(two, "{up: sequence}"), wide()), "sequence is for norms"));
  CHECK(says(message(planned(two, "{'*': whole}"), wide()), "divide no layer"));
  CHECK(says(message(planned(two, "{embedding: column}"), wide()), "is an embedding, which column does not divide"));
  CHECK(says(message(planned(two, "{up: column}"), wide()),
             " multiplies the outputs of 'up', of which each rank has a part"));
  CHECK(says(message(planned(two, "{head: column}"), wide({"--model.in_classes", "true"})),
             "aten::cross_entropy_loss works along the outputs of 'head'"));
  CHECK(says(
      message(planned(two, "{embedding: vocabulary}"), wide({"--model.in_classes", "true", "--model.ties", "true"})),
      "Add both to the plan"));
  CHECK(says(message(planned(two, "{up: column, down: row, head: column}"), wide()),
             "aten::mse_loss works along the outputs of 'head'"));
  CHECK(says(message(planned(two, "{'*.mlp.c_proj': column}"), mesh_gpt(text, {"--model.n_head", "2"})),
             "mlp.c_proj' by column, and it reads values that 'transformer.h.0.mlp.c_fc' divides already"));
  CHECK(says(message(planned(two), wide({"--model.trouble", "reads_weight"})), "aten::sum reads 'up.weight'"));
  CHECK(says(message(planned(two), wide({"--model.own_backward", "true"})), "aten::matmul reads 'up.weight'"));
  CHECK(
      says(message(planned(two, "{up: column, down: row, norm: sequence}"), wide({"--model.trouble", "counts_tokens"})),
           "with one for 2 tokens that all ranks have"));
  for (const auto& [trouble, operation] : {std::pair{"chunks", "chunk"},
                                           {"softmax", "softmax"},
                                           {"own_norm", "norm"},
                                           {"joins", "cat"},
                                           {"products", "matmul"}})
    CHECK(says(message(planned(two), wide({"--model.trouble", trouble})),
               fulgur::cat("aten::", operation, " works along the outputs of 'up'")));
  const std::string failed = message(planned(two), wide({"--model.trouble", "own_sizes"}));
  CHECK(says(failed, "aten::view reads outputs of 'up', of which each of 2 ranks has a part"));
  CHECK(says(failed, "take sizes from the tensors"));
  CHECK(says(message(planned(two, "{head: vocabulary}"),
                     wide({"--model.in_classes", "true", "--model.trouble", "reads_logits"})),
             "aten::softmax reads logits that 'head' divides by vocabulary"));
  CHECK(says(message(planned(two), {"--optimizer", "LBFGS", "--model", "ProbeTensor"}), "which LBFGS cannot"));
  CHECK(says(message(planned(two), wide({"--trainer.auto_micro_batch", "true"})), "auto_micro_batch"));
  Mesh unused{.pipeline = 2};
  CHECK(says(message(planned(unused), wide()), "tensor_plan has no effect with mesh.tensor: 1"));
}

TEST_CASE("tensor: the summary counts the parameters of all ranks, and the bytes of one") {
  const TemporaryFolder text, folder;
  const auto runs = fit_mesh(folder.path(), {.pipeline = 1, .tensor = 2},
                             wide_gpt(text, {"--trainer.max_steps", "1", "--trainer.enable_model_summary", "true"}));
  REQUIRE(all_exit(runs, 0));
  const Finished alone = fit_alone(
      folder.path(), wide_gpt(text, {"--trainer.max_steps", "1", "--trainer.enable_model_summary", "true"}))[0];
  const std::string all = runs[0].out + runs[0].err, of_one = alone.out + alone.err;
  const auto line = [](const std::string& output, const std::string& what) {
    const size_t at = output.find(what);
    REQUIRE(at != std::string::npos);
    const size_t begin = output.rfind('\n', at) + 1;
    return output.substr(begin, output.find('\n', at) - begin);
  };
  for (const char* what : {"Trainable params", "Total params", "Bytes of params in float32"})
    CHECK(line(all, what) == line(of_one, what));
  const std::string bytes = line(all, "bytes per trainable parameter"), whole = line(of_one, "bytes per trainable");
  const auto total = [](const std::string& text_of_bytes) {
    return std::stod(text_of_bytes.substr(text_of_bytes.rfind("= ") + 2));
  };
  CHECK(total(bytes) > total(whole) / 2);
  CHECK(total(bytes) < 0.6 * total(whole));
}

TEST_CASE("tensor: parameters that nothing uses are named, as with ddp") {
  const Mesh mesh = planned(GENERATE(Mesh{.pipeline = 1, .tensor = 2}, Mesh{.data = 2, .pipeline = 1, .tensor = 2},
                                     Mesh{.pipeline = 1, .tensor = 2, .shard = 2}));
  const TemporaryFolder folder;
  const auto runs = fit_mesh(folder.path(), mesh, wide({"--model.spare", "true", "--trainer.max_steps", "3"}));
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[0].err, "[strategies.mesh] every parameter must get a gradient"));
  CHECK(says(runs[0].err, "these got none: spare. Remove"));
  CHECK_FALSE(says(runs[0].err, "find_unused_parameters"));
}

TEST_CASE("tensor: on GPUs the ranks compute what one process does, over NCCL", "[gpu]") {
  const Mesh mesh = GENERATE(Mesh{.pipeline = 1, .tensor = 2}, Mesh{.data = 2, .pipeline = 1, .tensor = 2},
                             Mesh{.pipeline = 2, .tensor = 2}, Mesh{.pipeline = 1, .tensor = 4},
                             Mesh{.data = 2, .pipeline = 2, .tensor = 2});
  require_gpus(mesh.ranks());
  const TemporaryFolder text, one, many;
  const Arguments options =
      wide_gpt(text, {"--trainer.max_steps", all_combinations() ? "100" : "30", "--trainer.accelerator", "cuda"});
  trained_alone(one, options + Arguments{"--trainer.devices", "1"});
  trained_mesh(many, mesh, options);
  CHECK(largest_difference(column(one.path(), "mean_loss"), column(many.path(), "mean_loss")) < 1e-4);
}

}  // namespace tensor_parallel_test
