// The verb plan, of meshes.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/process.h"
#include "fulgur/core/text/text.h"
#include "support/gpu.h"

namespace plan_mesh_test {

using namespace fulgur::test;
using MeshReport = nlohmann::json;
using Catch::Matchers::WithinRel;
using Words = std::vector<std::string>;

namespace {

constexpr int64_t kLayers = 16, kWidth = 128, kTokens = 64;

Words both(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Layers with the same sizes, and little else.
Words gpt(const Words& more = {}) {
  return both({"--model",
               "GPT",
               "--model.vocab_size",
               "64",
               "--model.block_size",
               "64",
               "--model.n_layer",
               "16",
               "--model.n_head",
               "4",
               "--model.n_embd",
               "128",
               "--model.bias",
               "false",
               "--model.tie_weights",
               "false",
               "--optimizer",
               "AdamW",
               "--optimizer.lr",
               "1e-3",
               "--input",
               "64:int64",
               "--input",
               "64:int64"},
              more);
}

// A device with so much memory, of which nothing is reserved.
void write_profile(const std::filesystem::path& file, std::string_view memory_gib) {
  write_text(file,
             fulgur::cat("name: small\nmemory_gib: ", memory_gib,
                         "\nmemory_gb_s: 1000\ntflops: {float32: 60, half: 900}\nintra: {gb_s: 300, latency_us: 3}\n"
                         "inter: {gb_s: 40, latency_us: 14}\nreserved_gib: 0\nworkspace_mib: 0\nhost_copy_gb_s: "
                         "50\nstorage_gb_s: 5\n"));
}

// The first keys of a config after a line of a plan.
std::string keys_below(const std::string& plan, const std::string& line) {
  const std::string mark = "  for a config:\n";
  const size_t at = plan.find(mark, plan.find(line));
  REQUIRE(at != std::string::npos);
  std::string keys;
  std::istringstream lines(plan.substr(at + mark.size()));
  for (std::string each; std::getline(lines, each) && each.starts_with("    ");) keys += each.substr(4) + "\n";
  return keys;
}

Words mesh(const std::string& axes, const Words& more = {}) {
  return both(gpt({"--trainer.strategy", "mesh", "--trainer.strategy.mesh", axes}), more);
}

MeshReport plan_report(const Words& arguments, const Start& start = {}) {
  const Finished plan = trainer(both(both({"plan"}, arguments), {"--json"}), start);
  INFO(plan.out << plan.err);
  REQUIRE(plan.exit_code == 0);
  return MeshReport::parse(plan.out);
}

MeshReport given_mesh(const Words& arguments, const Start& start = {}) {
  return plan_report(arguments, start)["nodes"][0]["configured_mesh"];
}

double bytes(const MeshReport& prediction, const char* kind) { return prediction["memory"][kind].get<double>(); }

bool has_axes(const MeshReport& one, int64_t data, int64_t tensor, int64_t pipeline, int64_t shard) {
  return one["mesh"] == MeshReport{{"data", data}, {"shard", shard}, {"tensor", tensor}, {"pipeline", pipeline}};
}

const MeshReport& with_axes(const MeshReport& meshes, int64_t data, int64_t tensor, int64_t pipeline,
                            int64_t shard = 1) {
  for (const MeshReport& one : meshes)
    if (has_axes(one, data, tensor, pipeline, shard)) return one;
  FAIL("no mesh " << data << " " << shard << " " << tensor << " " << pipeline);
  return meshes;
}

}  // namespace

TEST_CASE("plan of a mesh: ranks along tensor and pipeline have parts of the parameters") {
  const MeshReport plan = plan_report(gpt({"--devices", "16", "--batch_size", "16"}));
  const auto of = [&](int64_t data, int64_t tensor, int64_t pipeline, const char* kind) {
    return bytes(with_axes(plan["nodes"][0]["meshes"], data, tensor, pipeline), kind);
  };
  const double all = 4 * plan["model"]["parameters"].get<double>();
  for (const int64_t ranks : {2, 4}) {
    CAPTURE(ranks);
    // All but norms and positions are divided.
    CHECK_THAT(of(16 / ranks, ranks, 1, "parameters") * static_cast<double>(ranks), WithinRel(all, 0.02));
    CHECK_THAT(of(16 / ranks, 1, ranks, "parameters") * static_cast<double>(ranks), WithinRel(all, 0.05));
    for (const char* kind : {"gradients", "states"}) {
      const double times = kind == std::string("states") ? 2 : 1;
      CHECK_THAT(of(16 / ranks, ranks, 1, kind), WithinRel(times * of(16 / ranks, ranks, 1, "parameters"), 0.01));
      CHECK_THAT(of(16 / ranks, 1, ranks, kind), WithinRel(times * of(16 / ranks, 1, ranks, "parameters"), 0.01));
    }
  }
  CHECK_THAT(of(4, 2, 2, "parameters") * 4, WithinRel(all, 0.05));
}

TEST_CASE("plan of a mesh: activations follow the schedule") {
  const auto activations = [](const char* schedule, const char* micro_batches) {
    return bytes(
        given_mesh(mesh("{pipeline: 2}", {"--devices", "2", "--batch_size", "32", "--trainer.strategy.schedule",
                                          schedule, "--trainer.strategy.micro_batches", micro_batches})),
        "activations");
  };
  // Micro-batches of the same size: 1f1b keeps those of two, gpipe of all.
  CHECK_THAT(activations("gpipe", "16") / activations("1f1b", "16"), WithinRel(8, 0.15));
  // The same batch in fewer micro-batches.
  CHECK_THAT(activations("1f1b", "8") / activations("1f1b", "16"), WithinRel(2, 0.05));
  CHECK_THAT(activations("gpipe", "8"), WithinRel(activations("gpipe", "16"), 0.1));
}

TEST_CASE("plan of a mesh: what ranks send, and wait for") {
  constexpr double kValues = 4.0 * 8 * kTokens * kWidth;  // of what a layer returns, for a batch of 8
  const MeshReport tensor = given_mesh(mesh("{tensor: 2}", {"--devices", "2", "--batch_size", "8"}));
  // Two sums in forward and two in backward of a layer, and one of the embedding, of the head's input and of its
  // logits.
  CHECK_THAT(tensor["sent_bytes"]["tensor"].get<double>(), WithinRel((4 * kLayers + 2) * kValues, 0.02));
  CHECK(tensor["sent_bytes"]["pipeline"] == 0);
  CHECK(tensor["wait_s"] == 0);

  const auto pipeline = [](const char* axes, const char* count, const Words& more = {}) {
    return given_mesh(mesh(axes, both({"--devices", "4", "--batch_size", "64", "--trainer.strategy.micro_batches",
                                       count, "--profile", "h100"},
                                      more)));
  };
  const MeshReport few = pipeline("{pipeline: 4}", "4"), many = pipeline("{pipeline: 4}", "32");
  // A rank in the middle sends values to the next one, and gradients to the one before.
  CHECK(few["sent_bytes"]["pipeline"] == 2 * 8 * kValues);
  CHECK(few["sent_bytes"]["data"] == 0);
  const auto part_of_wait = [](const MeshReport& one) {
    const double waits = one["wait_s"], computes = one["compute_s"];
    return waits / (waits + computes);
  };
  CHECK_THAT(part_of_wait(few), WithinRel(3.0 / 7, 0.2));
  CHECK_THAT(part_of_wait(many), WithinRel(3.0 / 35, 0.4));
  const MeshReport data = pipeline("{data: 2, pipeline: 2}", "4");
  CHECK_THAT(data["sent_bytes"]["data"].get<double>(), WithinRel(bytes(data, "gradients"), 0.02));
}

TEST_CASE("plan of a mesh says why others are not chosen") {
  const Words options{"--devices", "4", "--nodes", "8", "--trainer.global_batch_size", "24"};
  const MeshReport plan = plan_report(gpt(options));
  const MeshReport& nodes = plan["nodes"][0];
  // 32 ranks have no sample each.
  CHECK(nodes["best"].is_null());
  REQUIRE(nodes["best_mesh"].is_string());
  const MeshReport& meshes = nodes["meshes"];
  CHECK(meshes[0]["fits"] == true);
  CHECK(meshes[0]["micro_batches"].get<int64_t>() * meshes[0]["micro_batch"].get<int64_t>() ==
        meshes[0]["batch_size"].get<int64_t>());
  CHECK(meshes[0]["batch_size"].get<int64_t>() * meshes[0]["accumulate"].get<int64_t>() *
            meshes[0]["mesh"]["data"].get<int64_t>() * meshes[0]["mesh"]["shard"].get<int64_t>() ==
        24);
  CHECK(says(with_axes(meshes, 16, 1, 2)["obstacle"], "on 16 ranks along data do not divide global_batch_size, 24"));
  CHECK(says(with_axes(meshes, 1, 1, 32)["obstacle"], "32 stages, and the module's stages() returns 18 layers"));
  const MeshReport heads = plan_report(gpt({"--devices", "8"}))["nodes"][0]["meshes"];
  CHECK(says(with_axes(heads, 1, 8, 1)["obstacle"], "has 4 n_head, which mesh.tensor: 8 does not divide"));
  const Finished text = trainer(both({"plan"}, gpt(options)));
  INFO(text.out << text.err);
  for (const char* part : {"global_batch_size leaves these ranks no whole batch each", "with the fastest mesh",
                           ", and no sharding fits", "  not {data: 16, pipeline: 2}: micro-batches of 1 on 16 ranks"})
    CHECK(says(text.out, part));
  // A module without a plan for tensor has pipelines only, and one without stages no mesh.
  const Words classes{"--data",
                      "SyntheticDataModule",
                      "--data.batch_size",
                      "8",
                      "--optimizer",
                      "SGD",
                      "--optimizer.lr",
                      "0.1",
                      "--devices",
                      "4"};
  const MeshReport mlp = plan_report(both(classes, {"--model", "MlpClassifier", "--model.hidden", "[64,64,64]"}));
  for (const MeshReport& one : mlp["nodes"][0]["meshes"]) CHECK(one["mesh"]["tensor"] == 1);
  CHECK(mlp["nodes"][0]["meshes"].size() == 3);  // {data: 2, pipeline: 2}, {shard: 2, pipeline: 2}, {pipeline: 4}
  const MeshReport resnet =
      plan_report(both(classes, {"--model", "ResNet", "--model.depth", "20", "--data.shape", "[3,32,32]"}));
  CHECK(resnet["nodes"][0]["meshes"].empty());
}

TEST_CASE("plan of a mesh: ranks along shard keep parts, and gather all of a stage for a step, or units") {
  const auto given = [](const std::string& axes, const Words& more = {}) {
    return given_mesh(mesh(axes, both({"--devices", "8", "--batch_size", "8", "--profile", "h100"}, more)));
  };
  for (const std::string other : {", pipeline: 2}", ", tensor: 2}"}) {
    CAPTURE(other);
    const bool in_units = other == ", tensor: 2}";
    const MeshReport whole = given("{data: 4" + other), parts = given("{shard: 4" + other),
                     both_axes = given("{data: 2, shard: 2" + other);
    for (const auto& [one, shards] : {std::pair{&parts, 4}, std::pair{&both_axes, 2}}) {
      CAPTURE(shards);
      for (const char* kind : {"parameters", "states"})
        CHECK_THAT(bytes(*one, kind) * shards, WithinRel(bytes(whole, kind), 1e-6));
      if (in_units) {
        CHECK_THAT(bytes(*one, "gradients") * shards, WithinRel(bytes(whole, "gradients"), 1e-6));
        // Of eight layers and the rest, two units of parameters and one of gradients.
        CHECK(bytes(*one, "exchange") < bytes(whole, "parameters") * 3 / 8);
      } else {
        for (const char* kind : {"gradients", "activations"}) CHECK(bytes(*one, kind) == bytes(whole, kind));
        CHECK(bytes(*one, "exchange") == bytes(whole, "parameters"));
      }
      // All parameters are gathered, in units again in the backward, and the gradients divided.
      const double gathered = (in_units ? 2 : 1) * bytes(whole, "parameters");
      CHECK_THAT((*one)["sent_bytes"]["shard"].get<double>(),
                 WithinRel((shards - 1.0) / shards * (gathered + bytes(whole, "gradients")), 0.02));
    }
    CHECK(whole["sent_bytes"]["shard"] == 0);
    CHECK(whole["shard_s"] == 0);
    CHECK(parts["sent_bytes"]["data"] == 0);
    CHECK_THAT(both_axes["sent_bytes"]["data"].get<double>(), WithinRel(bytes(whole, "gradients") / 2, 0.02));
    CHECK_THAT(parts["optimizer_s"].get<double>() * 4, WithinRel(whole["optimizer_s"].get<double>(), 1e-6));
  }
  // The units of a stage are eight layers and the rest; each is gathered and its gradients are divided: messages with
  // their latencies, and half of the bytes.
  const MeshReport one = given("{data: 2, shard: 2, pipeline: 2}"),
                   two = given("{data: 2, shard: 2, pipeline: 2}", {"--trainer.accumulate_grad_batches", "2"});
  const double gather = 9 * (8.4e-6 + 3.4e-6) + bytes(one, "exchange") / 2 / 365e9;
  CHECK_THAT(one["shard_s"].get<double>(), WithinRel(2 * gather, 0.01));
  CHECK_THAT(two["shard_s"].get<double>(), WithinRel(3 * gather, 0.01));
  // Gradients for float32 copies are averaged in float32.
  const auto averages = [&](const char* masters) {
    return given("{data: 2, shard: 2, pipeline: 2}",
                 {"--trainer.precision", "bf16-true", "--trainer.precision.master_weights",
                  masters})["sent_bytes"]["data"]
        .get<double>();
  };
  CHECK_THAT(averages("true"), WithinRel(2 * averages("false"), 0.01));
  const MeshReport noted =
      plan_report(mesh("{shard: 2, pipeline: 2}", {"--devices", "4", "--trainer.strategy.units", "[transformer.h.*]"}));
  CHECK(says(noted["notes"].dump(), "units are planned as auto"));
}

TEST_CASE("plan of a mesh: ranks along shard come after those along tensor, and before those along data") {
  const auto shard_s = [](const char* axes, const char* nodes, const char* devices) {
    return given_mesh(mesh(axes, {"--nodes", nodes, "--devices", devices}))["shard_s"].get<double>();
  };
  CHECK(shard_s("{shard: 2, pipeline: 2}", "2", "2") == shard_s("{shard: 2, pipeline: 2}", "1", "4"));
  CHECK(shard_s("{tensor: 2, shard: 2}", "2", "2") > shard_s("{tensor: 2, shard: 2}", "1", "4"));
  CHECK(shard_s("{data: 2, shard: 2, tensor: 2}", "2", "4") == shard_s("{data: 2, shard: 2, tensor: 2}", "1", "8"));
}

TEST_CASE("plan of a mesh with data and shard alone is that of fsdp") {
  const auto beside = [](const char* axes, const char* sharding, const Words& more = {}) {
    const MeshReport plan =
        plan_report(mesh(axes, both({"--nodes", "2", "--devices", "4", "--batch_size", "8"}, more)));
    const MeshReport& given = plan["nodes"][0]["configured_mesh"];
    for (const MeshReport& one : plan["as_configured"])
      if (one["sharding"] == sharding) {
        CHECK(given["memory"] == one["memory"]);
        CHECK(given["sent_bytes"]["shard"] == one["sent_bytes"]);
        for (const char* same : {"step_s", "samples_per_s", "efficiency", "fits"}) CHECK(given[same] == one[same]);
      }
    return given;
  };
  const MeshReport nodes = beside("{data: 2, shard: 4}", "hybrid"), all = beside("{shard: 8}", "parameters");
  const MeshReport pairs = beside("{data: 4, shard: 2}", "");
  CHECK_THAT(bytes(pairs, "parameters"), WithinRel(2 * bytes(nodes, "parameters"), 1e-6));
  CHECK_THAT(bytes(nodes, "parameters"), WithinRel(2 * bytes(all, "parameters"), 1e-6));
  // Pairs send half of their gathers, and average halves of the gradients among four.
  const double parameters = 2 * bytes(pairs, "parameters");
  CHECK_THAT(pairs["sent_bytes"]["shard"].get<double>(), WithinRel((3.0 / 2 + 2 * 3.0 / 4 / 2) * parameters, 1e-6));
  const MeshReport window = beside("{data: 2, shard: 4}", "hybrid", {"--trainer.global_batch_size", "128"});
  CHECK(window["accumulate"] == 2);
  CHECK(window["holds_whole_module"] == true);
}

TEST_CASE("plan finds the sizes of shard, which are powers of two") {
  const MeshReport meshes = plan_report(gpt({"--devices", "12"}))["nodes"][0]["meshes"];
  std::vector<int64_t> sizes;
  for (const MeshReport& one : meshes) {
    CHECK(one["mesh"]["tensor"].get<int64_t>() * one["mesh"]["pipeline"].get<int64_t>() > 1);
    if (one["mesh"]["tensor"] == 1 && one["mesh"]["pipeline"] == 3) sizes.push_back(one["mesh"]["shard"]);
  }
  std::ranges::sort(sizes);
  CHECK(sizes == std::vector<int64_t>{1, 2, 4});
  for (const MeshReport& one : meshes) {
    int64_t ranks = 1;
    for (const char* axis : {"data", "shard", "tensor", "pipeline"}) ranks *= one["mesh"][axis].get<int64_t>();
    CHECK(ranks == 12);
  }
  // What no size of shard changes is said once.
  const MeshReport few = plan_report(gpt({"--devices", "8", "--trainer.global_batch_size", "2"}))["nodes"][0]["meshes"];
  CHECK(says(with_axes(few, 4, 1, 2)["obstacle"], "on 4 ranks along data do not divide global_batch_size, 2"));
  CHECK(std::ranges::none_of(few, [](const MeshReport& one) { return has_axes(one, 2, 1, 2, /*shard=*/2); }));
  // Of meshes that differ in shard alone, the text shows the fastest, and those beside the chosen one.
  const Finished run = trainer(both({"plan"}, gpt({"--devices", "8"})));
  INFO(run.out << run.err);
  CHECK(says(run.out, "  not {data: 1, shard: 4, pipeline: 2}: "));
  CHECK(says(run.out, "more: --json has all"));
}

TEST_CASE("plan of a mesh that the ranks do not form, or that lacks memory") {
  const MeshReport plan = plan_report(mesh("{data: 1, pipeline: 4}", {"--nodes", "1,2", "--devices", "4"}));
  CHECK(plan["nodes"][0]["configured_mesh"]["fits"] == true);
  CHECK(says(plan["nodes"][1]["configured_mesh"]["obstacle"], "the axes of the mesh have 4 ranks, and 2 nodes with 4"));
  const MeshReport large = given_mesh(mesh("{pipeline: 2}", {"--devices", "2", "--batch_size", "131072"}));
  CHECK(large["fits"] == false);
  CHECK(says(large["obstacle"], "most for activations"));
  const auto refused = [](const Words& options, const char* why) {
    const Finished run = trainer(both({"plan"}, options));
    INFO(run.err);
    CHECK(run.exit_code == 2);
    CHECK(says(run.err, why));
  };
  CHECK(says(given_mesh(mesh("{tensor: 8}", {"--devices", "8"}))["obstacle"],
             "has 4 n_head, which mesh.tensor: 8 does not divide"));
  CHECK(says(given_mesh(mesh("{shard: 2, tensor: 2}",
                             {"--devices", "4", "--batch_size", "1", "--trainer.global_batch_size", "3"}))["obstacle"],
             "batches of 1 on 2 ranks along data and shard do not divide global_batch_size, 3"));
  CHECK(says(given_mesh(mesh("{data: 1, shard: 2, pipeline: 2}", {"--devices", "8"}))["obstacle"],
             "the axes of the mesh have 4 ranks"));
  refused(mesh("{tensor: 2}", {"--devices", "2", "--trainer.strategy.cuts", "[h.1]"}), "cuts has no effect");
}

TEST_CASE("plan of a mesh refuses what the strategy refuses") {
  const Words interleaved{"--devices", "2", "--trainer.strategy.schedule", "interleaved_1f1b",
                          "--trainer.strategy.micro_batches"};
  CHECK(says(given_mesh(mesh("{pipeline: 2}", both(interleaved, {"5"})))["obstacle"], "micro_batches is 5"));
  CHECK(given_mesh(mesh("{pipeline: 2}", both(interleaved, {"8", "--batch_size", "8"})))["fits"] == true);
  for (const char* option : {"--trainer.sync_batchnorm", "--trainer.auto_micro_batch"}) {
    CAPTURE(option);
    const Finished run = trainer(both({"plan"}, mesh("{tensor: 2}", {"--devices", "2", option, "true"})));
    CHECK(run.exit_code == 2);
    CHECK(says(run.err, "[strategies.mesh]"));
    CHECK(says(trainer(both({"plan"}, gpt({"--devices", "2", option, "true"}))).out, "note: a mesh along tensor"));
  }
}

TEST_CASE(
    "plan writes the keys of a config for the fastest mesh, which stays divided if the whole module does not fit") {
  const bool has_room = GENERATE(true, false);
  const TemporaryFolder folder;
  write_profile(folder / "small.yaml", has_room ? "8" : "0.016");
  const Words four = gpt({"--devices", "4", "--profile", "small.yaml"});
  const Finished found = trainer(both({"plan"}, four), {.folder = folder.path()});
  INFO(found.out << found.err);
  REQUIRE(found.exit_code == 0);
  const std::string keys = keys_below(found.out, "Predicted, with the fastest mesh");
  CAPTURE(keys);
  CHECK(says(keys, "evaluation: units") == !has_room);
  CHECK(says(found.out, "note: by default, a run with a mesh gathers the whole module") == !has_room);
  write_text(folder / "mesh.yaml", keys);
  const Words with_keys =
      both({"-c", "mesh.yaml", "--data", "TokenFilesDataModule", "--data.paths", "[missing]"}, four);
  const MeshReport plan = plan_report(with_keys, {.folder = folder.path()});
  const MeshReport& given = plan["nodes"][0]["configured_mesh"];
  CHECK(given["fits"] == true);
  CHECK(given["starts"] == true);
  CHECK(given["holds_whole_module"] == has_room);
  for (const MeshReport& one : plan["nodes"][0]["meshes"])
    if (one["mesh"] == given["mesh"]) CHECK(one["step_s"] == given["step_s"]);
  CHECK(plan["notes"].empty());
}

TEST_CASE("plan writes the keys of a config for the best sharding") {
  struct Row {
    const char* memory_gib;
    Words ranks;
    const char* sharding;
    std::string strategy;
  };
  const Row row = GENERATE(
      Row{"8", {"--devices", "1"}, "ddp", ""}, Row{"8", {"--devices", "4"}, "ddp", "  strategy: ddp\n"},
      Row{"0.022",
          {"--nodes", "2", "--devices", "4"},
          "hybrid",
          "  strategy:\n    class_path: fsdp\n    init_args:\n      sharding: hybrid\n      shard_size: 4\n"},
      Row{"0.014",
          {"--nodes", "2", "--devices", "4"},
          "parameters",
          "  strategy:\n    class_path: fsdp\n    init_args:\n      sharding: parameters\n      state_dict_type: "
          "sharded\n"});
  const TemporaryFolder folder;
  write_profile(folder / "small.yaml", row.memory_gib);
  Words short_inputs = gpt(both(row.ranks, {"--profile", "small.yaml"}));
  std::ranges::replace(short_inputs, "64:int64", "8:int64");
  const Finished found = trainer(both({"plan"}, short_inputs), {.folder = folder.path()});
  INFO(found.out << found.err);
  REQUIRE(found.exit_code == 0);
  const std::string keys = keys_below(found.out, "Predicted, with the fastest sharding");
  CAPTURE(keys);
  const MeshReport nodes = plan_report(short_inputs, {.folder = folder.path()})["nodes"][0];
  CHECK(nodes["best"] == row.sharding);
  const std::string batch = "data:\n  init_args:\n    batch_size: ";
  CHECK(says(keys, row.strategy + batch));
  CHECK(says(keys, "strategy") != row.strategy.empty());
  write_text(folder / "keys.yaml", keys);
  const MeshReport again = plan_report(
      both({"-c", "keys.yaml", "--data", "TokenFilesDataModule", "--data.paths", "[missing]"}, short_inputs),
      {.folder = folder.path()});
  for (const MeshReport& one : nodes["shardings"])
    if (one["sharding"] == row.sharding)
      for (const MeshReport& other : again["as_configured"])
        if (other["sharding"] == row.sharding) CHECK(one["step_s"] == other["step_s"]);
}

TEST_CASE("plan with a global batch size writes keys that can stand beside it") {
  const TemporaryFolder folder;
  write_profile(folder / "small.yaml", "0.02");
  // Here no sharding fits, and no stage with the block: ranks along tensor accumulate.
  write_profile(folder / "least.yaml", "0.004");
  const Words two = gpt({"--devices", "2", "--model.n_layer", "1"});
  const auto keys = [&](const char* profile, const Words& more, const char* part) {
    const Finished found = trainer(both(both({"plan", "--profile", profile}, two), more), {.folder = folder.path()});
    INFO(found.out << found.err);
    REQUIRE(found.exit_code == 0);
    return keys_below(found.out, part);
  };
  const Words global{"--trainer.global_batch_size", "64"}, least{"--profile", "least.yaml"};
  const MeshReport plan = plan_report(both(both(two, global), least), {.folder = folder.path()})["nodes"][0];
  REQUIRE(plan["best_mesh"] == "{data: 1, tensor: 2}");
  for (const MeshReport& one : plan["meshes"])
    if (one["mesh"]["tensor"] == 2) REQUIRE(one["accumulate"] > 1);
  CHECK_FALSE(says(keys("least.yaml", global, "Predicted, with the fastest mesh"), "accumulate_grad_batches"));
  CHECK_FALSE(says(keys("small.yaml", global, "Predicted, with the fastest sharding"), "accumulate_grad_batches"));
  CHECK(says(keys("least.yaml", {"--trainer.accumulate_grad_batches", "2"}, "Predicted, with the fastest mesh"),
             "accumulate_grad_batches: 2"));
}

TEST_CASE(
    "plan says for which shardings and meshes a run must stay divided, if others have room for the whole module") {
  const TemporaryFolder folder;
  write_profile(folder / "small.yaml", "0.0175");
  Words short_inputs = gpt({"--nodes", "2", "--devices", "4", "--profile", "small.yaml"});
  std::ranges::replace(short_inputs, "64:int64", "8:int64");
  const auto text = [&](const Words& more) {
    const Finished run = trainer(both(both({"plan"}, short_inputs), more), {.folder = folder.path()});
    INFO(run.out << run.err);
    REQUIRE(run.exit_code == 0);
    return run.out;
  };
  const std::string of_sharding =
      "not hybrid: the whole module does not fit beside its parts, without state_dict_type: sharded";
  const std::string of_mesh =
      "not {data: 2, pipeline: 4}: the whole module does not fit beside its parts, without evaluation: units and "
      "state_dict_type: sharded";
  const auto fsdp = [&](const char* saves) {
    return text({"--trainer.strategy", "fsdp", "--trainer.strategy.sharding", "parameters",
                 "--trainer.strategy.state_dict_type", saves});
  };
  const std::string found = fsdp("full");
  INFO(found);
  CHECK(says(found, of_sharding));
  CHECK(says(found, of_mesh));
  CHECK(says(found, "# Evaluations have no micro-batches: set eval_batch_size, too, such as to "));
  CHECK_FALSE(says(fsdp("sharded"), of_sharding));
  CHECK_FALSE(says(text({"--trainer.strategy", "mesh", "--trainer.strategy.mesh", "{data: 2, pipeline: 4}",
                         "--trainer.strategy.evaluation", "units", "--trainer.strategy.state_dict_type", "sharded"}),
                   of_mesh));
}

TEST_CASE("plan of a mesh over nodes: what crosses them takes longer, and micro-batches may differ by a sample") {
  const auto step = [](const std::string& axes, const Words& options) {
    const MeshReport one = given_mesh(mesh(axes, options));
    CAPTURE(axes, one["obstacle"]);
    REQUIRE(one["fits"] == true);
    return one["step_s"].get<double>();
  };
  const auto over = [&](const std::string& axes, const char* nodes, const char* devices) {
    return step(axes, {"--nodes", nodes, "--devices", devices, "--batch_size", "16"});
  };
  const double one = over("{pipeline: 4}", "1", "4"), two = over("{pipeline: 4}", "2", "2"),
               four = over("{pipeline: 4}", "4", "1");
  CHECK(one < two);
  CHECK(two < four);
  // The ranks 3, 4 and 5 average gradients over two nodes of four devices.
  CHECK(over("{pipeline: 4}", "1", "12") < over("{pipeline: 4}", "3", "4"));
  const auto batch = [&](const char* samples) {
    return step("{pipeline: 4}", {"--devices", "4", "--batch_size", samples});
  };
  const double least = batch("16"), most = batch("32");
  CHECK_THAT(batch("17") - least, WithinRel((most - least) / 16, 1e-6));
  CHECK_THAT(batch("24") - least, WithinRel((most - least) / 2, 1e-6));
  CHECK(says(given_mesh(mesh("{data: 2}", {"--devices", "8"}))["obstacle"], "the axes of the mesh have 2 ranks"));
}

TEST_CASE("plan of a model that needs several samples, and reasons that compare samples") {
  const Finished norm =
      trainer({"plan", "--plugin", FULGUR_PROBE_PLUGIN, "--model", "ProbeOperations", "--model.needs_samples", "3",
               "--model.only", "relu", "--data", "ProbeData", "--optimizer", "SGD", "--optimizer.lr", "0.1"});
  INFO(norm.out << norm.err);
  CHECK(norm.exit_code == 0);
  const Finished run = trainer(both({"plan"}, mesh("{pipeline: 2}", {"--devices", "8"})));
  INFO(run.out);
  CHECK(says(run.out, "longer for a sample, "));
}

TEST_CASE("plan finds meshes for a model with 70 billion parameters in seconds") {
  const auto begin = std::chrono::steady_clock::now();
  const MeshReport plan =
      plan_report({"-c", std::string(FULGUR_CONFIGS) + "/recipes/llama_70b.yaml", "--input", "8192:int64", "--input",
                   "8192:int64", "--nodes", "1..1024", "--devices", "8", "--profile", "h200"},
                  {.folder = {}, .environment = {"FULGUR_TOKENS=missing"}});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(120));
  const MeshReport& most = plan["nodes"].back();
  CHECK(most["best"].is_null());
  CHECK(most["best_mesh"].is_string());
  // With 16 devices, states of whole stages leave no room, and parts of them do.
  const MeshReport& sixteen = plan["nodes"][1]["meshes"];
  CHECK(says(with_axes(sixteen, 4, 1, 4)["obstacle"], "most for states"));
  CHECK(with_axes(sixteen, 1, 1, 4, /*shard=*/4)["fits"] == true);
  CHECK(says(most["best_mesh"], "shard: "));
  const MeshReport& eight = with_axes(plan["nodes"][0]["meshes"], 1, 8, 1);
  CHECK_THAT(bytes(eight, "parameters"), WithinRel(2.0 * 70'553'706'496 / 8, 0.01));
  for (const MeshReport& nodes : plan["nodes"]) CHECK(nodes["meshes"].size() >= 9);
}

namespace {

const Words kTrained{"--data",
                     "TextDataModule",
                     "--data.path",
                     "text.txt",
                     "--data.block_size",
                     "128",
                     "--data.batch_size",
                     "16",
                     "--model",
                     "GPT",
                     "--model.vocab_size",
                     "1024",
                     "--model.block_size",
                     "128",
                     "--model.n_embd",
                     "256",
                     "--optimizer",
                     "AdamW",
                     "--optimizer.lr",
                     "1e-3",
                     "--trainer.strategy",
                     "mesh",
                     "--trainer.strategy.timeout_s",
                     "600"};

void write_trained_text(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += i % 3 == 0 ? "to be " : i % 5 == 0 ? "or not " : "that is ";
  write_text(folder / "text.txt", text);
}

const Words kMasters{"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true"};

// The most bytes that each rank had on its device.
std::vector<double> counted_bytes(const Words& options, const std::string& devices, const TemporaryFolder& folder) {
  const Finished run =
      trainer(both({"fit", "--trainer.accelerator", "cuda", "--trainer.devices", devices,
                    "--trainer.enable_progress_bar", "false", "--trainer.max_steps", "3", "--trainer.limit_val_batches",
                    "0", "--trainer.enable_checkpointing", "false", "--report", "report.json"},
                   options),
              {.folder = folder.path()});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  std::vector<double> counted;
  const MeshReport report = MeshReport::parse(read_text(folder / "report.json"));
  for (const MeshReport& peak : report["peak_memory"])
    if (says(peak["device"], "cuda")) counted.push_back(peak["bytes"].get<double>());
  REQUIRE(counted.size() == std::stoul(devices));
  return counted;
}

}  // namespace

TEST_CASE("plan predicts the memory that ranks of a mesh need on GPUs", "[gpu][bytes]") {
  require_gpus(4);
  const TemporaryFolder folder;
  write_trained_text(folder);
  struct Case {
    const char* devices;
    const char* axes;
    Words more;
  };
  for (const Case& one :
       {Case{"2", "{pipeline: 2}", {}}, Case{"2", "{tensor: 2}", {}}, Case{"2", "{tensor: 2}", kMasters},
        Case{"2", "{pipeline: 2}", both(kMasters, {"--data.batch_size", "2"})},
        Case{"4", "{shard: 2, pipeline: 2}", {}}, Case{"4", "{tensor: 2, shard: 2}", {}},
        Case{"4", "{tensor: 2, pipeline: 2}", {"--trainer.precision", "bf16-mixed"}},
        Case{"4", "{data: 2, pipeline: 2}", {"--trainer.strategy.schedule", "gpipe"}}}) {
    CAPTURE(one.axes);
    const Words options = both(both(kTrained, {"--trainer.strategy.mesh", one.axes}), one.more);
    const MeshReport plan = given_mesh(both(options, {"--devices", one.devices}), {.folder = folder.path()});
    CHECK_THAT(bytes(plan, "total"), WithinRel(std::ranges::max(counted_bytes(options, one.devices, folder)), 0.05));
  }
}

TEST_CASE("mesh: a rank's memory does not grow with the number of micro-batches", "[gpu][bytes]") {
  require_gpus(2);
  const TemporaryFolder folder;
  write_trained_text(folder);
  const auto last_rank = [&](const char* samples, const char* micro_batches) {
    return counted_bytes(both(kTrained, {"--trainer.strategy.mesh", "{pipeline: 2}", "--data.batch_size", samples,
                                         "--trainer.strategy.micro_batches", micro_batches}),
                         "2", folder)[1];
  };
  // All gradients that it sends in a step to the rank before would be 8 MiB, and 2 MiB.
  CHECK(last_rank("64", "32") - last_rank("16", "8") < 3.0 * 1024 * 1024);
}

}  // namespace plan_mesh_test
