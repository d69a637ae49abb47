// The verb plan.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "process.h"
#include "support/gpu.h"

namespace plan_test {

using namespace fulgur::test;
using PlanReport = nlohmann::json;
using Catch::Matchers::WithinRel;

namespace {

const std::vector<std::string> kLlama70B{"--model",
                                         "GPT",
                                         "--model.vocab_size",
                                         "128256",
                                         "--model.block_size",
                                         "8192",
                                         "--model.n_layer",
                                         "80",
                                         "--model.n_head",
                                         "64",
                                         "--model.n_kv_head",
                                         "8",
                                         "--model.n_embd",
                                         "8192",
                                         "--model.mlp",
                                         "swiglu",
                                         "--model.mlp_hidden",
                                         "28672",
                                         "--model.positions",
                                         "rotary",
                                         "--model.norm",
                                         "rms",
                                         "--model.bias",
                                         "false",
                                         "--model.tie_weights",
                                         "false",
                                         "--model.activation_checkpointing",
                                         "all",
                                         "--optimizer",
                                         "AdamW",
                                         "--optimizer.lr",
                                         "1e-4",
                                         "--trainer.precision",
                                         "bf16-true",
                                         "--input",
                                         "8192:int64",
                                         "--input",
                                         "8192:int64"};

std::vector<std::string> joined(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::string> plan_of(const std::vector<std::string>& arguments, const std::vector<std::string>& more = {}) {
  return joined(joined({"plan"}, arguments), more);
}

PlanReport planned(const std::vector<std::string>& arguments, const Start& start = {}) {
  const Finished plan = trainer(plan_of(arguments, {"--json"}), start);
  INFO(plan.out << plan.err);
  REQUIRE(plan.exit_code == 0);
  return PlanReport::parse(plan.out);
}

const PlanReport& of_sharding(const PlanReport& predictions, const std::string& sharding) {
  for (const PlanReport& one : predictions)
    if (one["sharding"] == sharding) return one;
  FAIL("no " << sharding);
  return predictions;
}

void refused(const std::vector<std::string>& arguments, const std::string& text) {
  const Finished plan = trainer(plan_of(arguments));
  INFO(plan.err);
  CHECK(plan.exit_code == 2);
  CHECK(says(plan.err, text));
}

const std::vector<std::string> kMlp{"--model",
                                    "MlpClassifier",
                                    "--data",
                                    "SyntheticDataModule",
                                    "--model.hidden",
                                    "[64]",
                                    "--data.shape",
                                    "[1,28,28]",
                                    "--data.batch_size",
                                    "32",
                                    "--optimizer",
                                    "AdamW",
                                    "--optimizer.lr",
                                    "1e-3"};

}  // namespace

TEST_CASE("plan counts the operations of a step on meta") {
  const PlanReport plan = planned(kMlp);
  const PlanReport& model = plan["model"];
  const int64_t parameters = 784 * 64 + 64 + 64 * 10 + 10;
  CHECK(model["parameters"] == parameters);
  CHECK(model["batch_size"] == 32);
  // Two products in forward, and in backward two for the second layer and one for the first, whose input needs none.
  CHECK(model["flops"] == 2.0 * 32 * (784 * 64 * 2 + 64 * 10 * 3));
}

TEST_CASE("plan describes a model with 70 billion parameters in seconds, without its memory") {
  const auto begin = std::chrono::steady_clock::now();
  const PlanReport plan = planned(joined(kLlama70B, {"--nodes", "1..1024", "--profile", "h200"}));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(300));
  CHECK(plan["model"]["parameters"] == 70'553'706'496);
  CHECK(plan["model"]["units"] == 81);
  REQUIRE(plan["nodes"].size() == 11);
  const PlanReport& one_node = plan["as_configured"];
  const auto memory = [&](const char* sharding, const char* kind) {
    return of_sharding(one_node, sharding)["memory"][kind].get<double>();
  };
  const double weights = 2.0 * 70'553'706'496;
  CHECK_THAT(memory("ddp", "parameters"), WithinRel(weights, 1e-9));
  CHECK_THAT(memory("ddp", "gradients"), WithinRel(weights, 1e-9));
  CHECK_THAT(memory("ddp", "states"), WithinRel(2 * weights, 1e-5));
  for (const char* divided : {"optimizer", "gradients", "parameters"})
    CHECK_THAT(memory(divided, "states"), WithinRel(2 * weights / 8, 1e-5));
  CHECK_THAT(memory("optimizer", "gradients"), WithinRel(weights, 1e-9));
  CHECK_THAT(memory("gradients", "gradients"), WithinRel(weights / 8, 1e-9));
  CHECK_THAT(memory("gradients", "parameters"), WithinRel(weights, 1e-9));
  CHECK_THAT(memory("parameters", "parameters"), WithinRel(weights / 8, 1e-9));
  CHECK_FALSE(of_sharding(one_node, "ddp")["fits"].get<bool>());
  CHECK(says(of_sharding(one_node, "ddp")["obstacle"], "most for states"));
  CHECK(of_sharding(one_node, "parameters")["fits"].get<bool>());
  CHECK(plan["nodes"][0]["best"] == "parameters");
  // Twice the gradients for an all-reduce; the parameters twice and the gradients once for divided parameters.
  CHECK_THAT(of_sharding(one_node, "ddp")["sent_bytes"].get<double>(), WithinRel(2 * weights * 7 / 8, 1e-9));
  CHECK_THAT(of_sharding(one_node, "parameters")["sent_bytes"].get<double>(), WithinRel(3 * weights * 7 / 8, 1e-9));
}

TEST_CASE("plan: more nodes make a step slower, failures more frequent and saves too") {
  const PlanReport plan = planned(joined(kMlp, {"--nodes", "1,8,64", "--devices", "4", "--profile", "a100"}));
  REQUIRE(plan["nodes"].size() == 3);
  double step = 0, every = 1e12, waste = 0;
  for (const PlanReport& nodes : plan["nodes"]) {
    const PlanReport& ddp = of_sharding(nodes["shardings"], "ddp");
    CHECK(ddp["devices"] == 4);
    CHECK(ddp["step_s"] > step);
    CHECK(ddp["save_every_s"] < every);
    CHECK(ddp["waste"] > waste);
    // Young's interval.
    const double mtbf = 50000 * 3600.0 / (ddp["nodes"].get<double>() * 4);
    CHECK_THAT(ddp["save_every_s"].get<double>(),
               WithinRel(std::sqrt(2 * ddp["save_stall_s"].get<double>() * mtbf), 1e-6));
    step = ddp["step_s"], every = ddp["save_every_s"], waste = ddp["waste"];
  }
}

TEST_CASE("plan follows the options of the run: buckets as views, compression, accumulation") {
  const auto ddp = [](const std::vector<std::string>& more) {
    const PlanReport plan = planned(joined(kMlp, more));
    return PlanReport(of_sharding(plan["as_configured"], "ddp"));
  };
  const PlanReport plain = ddp({"--devices", "2", "--trainer.strategy", "ddp"});
  const PlanReport views =
      ddp({"--devices", "2", "--trainer.strategy", "ddp", "--trainer.strategy.gradient_as_bucket_view", "true"});
  CHECK(plain["memory"]["exchange"] == plain["memory"]["gradients"]);
  CHECK(views["memory"]["exchange"] == 0);
  const PlanReport half =
      ddp({"--devices", "2", "--trainer.strategy", "ddp", "--trainer.strategy.compression", "bf16"});
  CHECK_THAT(half["sent_bytes"].get<double>(), WithinRel(plain["sent_bytes"].get<double>() / 2, 1e-4));
  const PlanReport window = ddp({"--devices", "2", "--trainer.accumulate_grad_batches", "4"});
  CHECK_THAT(window["compute_s"].get<double>(), WithinRel(4 * plain["compute_s"].get<double>(), 1e-9));
  CHECK(window["sent_bytes"] == plain["sent_bytes"]);
  // 32 samples on two ranks: four batches of each make 256, and three do not make 100.
  const PlanReport global = ddp({"--devices", "2", "--trainer.global_batch_size", "256"});
  CHECK(global["step_s"] == window["step_s"]);
  CHECK(global["memory"] == window["memory"]);
  const PlanReport uneven = ddp({"--devices", "2", "--trainer.global_batch_size", "100"});
  CHECK_FALSE(uneven["fits"].get<bool>());
  CHECK(says(uneven["obstacle"], "batches of 32 on 2 ranks do not divide global_batch_size, 100"));
  for (const PlanReport& nodes :
       planned(joined(kMlp, {"--devices", "2", "--nodes", "1,2", "--trainer.global_batch_size", "128"}))["nodes"])
    for (const PlanReport& one : nodes["shardings"])
      if (one["fits"].get<bool>())
        CHECK(128 % (one["batch_size"].get<int64_t>() * 2 * one["nodes"].get<int64_t>()) == 0);
}

TEST_CASE("plan takes a profile of one's own, and says what is wrong in it") {
  const TemporaryFolder folder;
  write_text(
      folder / "mine.yaml",
      "name: mine\nmemory_gib: 0.0001\nmemory_gb_s: 100\ntflops: {float32: 1, tf32: 1, half: 2}\n"
      "intra: {gb_s: 10, latency_us: 1}\ninter: {gb_s: 1, latency_us: 10}\nhost_copy_gb_s: 10\nstorage_gb_s: 1\n");
  std::vector<std::string> all = joined(kMlp, {"--profile", "mine.yaml"});
  const PlanReport plan = planned(all, {.folder = folder.path()});
  CHECK(plan["profile"] == "mine");
  CHECK(plan["nodes"][0]["best"].is_null());
  CHECK_FALSE(of_sharding(plan["as_configured"], "ddp")["fits"].get<bool>());
  write_text(folder / "wrong.yaml", "name: wrong\nmemory_gb: 3\n");
  all.back() = (folder / "wrong.yaml").string();
  refused(all, "memory_gb");
  all.back() = "h1000";
  refused(all, "there is no profile 'h1000'; did you mean 'h100'");
}

TEST_CASE("plan counts float32 copies of weights, and their gradients, divided among the ranks") {
  const auto memory = [](const std::vector<std::string>& more) {
    const PlanReport plan = planned(joined(joined(kLlama70B, {"--nodes", "8"}), more));
    return of_sharding(plan["nodes"][0]["shardings"], "parameters")["memory"];
  };
  const auto half = memory({}), copies = memory({"--trainer.precision.master_weights", "true"});
  CHECK(copies["parameters"] == half["parameters"]);
  CHECK(copies["activations"] == half["activations"]);
  CHECK_THAT(copies["gradients"].get<double>(), WithinRel(2 * half["gradients"].get<double>(), 1e-6));
  // Two moments of bfloat16; two of float32, and the copies.
  CHECK_THAT(copies["states"].get<double>(), WithinRel(3 * half["states"].get<double>(), 1e-6));
}

TEST_CASE("plan knows the shapes of operations for which LibTorch has no kernel without a device") {
  const Finished run = trainer({"plan", "--plugin", FULGUR_PROBE_PLUGIN, "--model", "ProbeOperations", "--optimizer",
                                "SGD", "--optimizer.lr", "0.1", "--data", "ProbeData"});
  CAPTURE(run.out, run.err);
  CHECK(run.exit_code == 0);
}

TEST_CASE("plan says what it leaves out, and what to try if nothing fits") {
  const Finished large = trainer(joined({"plan", "--nodes", "8"}, kLlama70B));
  INFO(large.out << large.err);
  CHECK(says(large.out, "note: with state_dict_type: full, a save of fsdp gathers the whole module"));
  CHECK(says(large.out, "note: by default, a run with a mesh gathers the whole module"));
  const auto saved = [](const char* type) {
    return planned(joined(kLlama70B, {"--nodes", "8", "--trainer.strategy", "fsdp", "--trainer.strategy.sharding",
                                      "parameters", "--trainer.strategy.state_dict_type", type}));
  };
  CHECK(of_sharding(saved("sharded")["nodes"][0]["shardings"], "parameters")["starts"] == true);
  CHECK(of_sharding(saved("full")["nodes"][0]["shardings"], "parameters")["starts"] == false);
  std::vector<std::string> mixed = joined({"plan", "--nodes", "8"}, kLlama70B);
  *std::ranges::find(mixed, "bf16-true") = "bf16-mixed";
  const Finished nothing = trainer(mixed);
  INFO(nothing.out);
  CHECK(says(nothing.out, "nothing fits"));
  const Finished offload =
      trainer(joined(joined({"plan"}, kLlama70B), {"--trainer.strategy", "fsdp", "--trainer.strategy.sharding",
                                                   "parameters", "--trainer.strategy.offload", "optimizer"}));
  CHECK(offload.exit_code == 2);
  CHECK(says(offload.err, "plan does not know `offload` yet"));
  // All blocks are recomputed already.
  CHECK(says(nothing.out, "are activations: try precision: bf16-true"));
  const Finished one_node = trainer(joined({"plan"}, kLlama70B));
  INFO(one_node.out);
  CHECK(says(one_node.out, "try 2 nodes, on which a batch of one sample fits"));
  const Finished one_input = trainer({"plan", "--model", "GPT", "--model.vocab_size", "100", "--model.block_size", "16",
                                      "--optimizer", "AdamW", "--optimizer.lr", "0.1", "--input", "16:int64"});
  CHECK(one_input.exit_code == 2);
  CHECK(says(one_input.err, "Give an --input for each entry"));
  const Finished units = trainer(joined(
      joined({"plan"}, kLlama70B), {"--trainer.strategy", "fsdp", "--trainer.strategy.sharding", "hybrid",
                                    "--trainer.strategy.shard_size", "4", "--trainer.strategy.units", "[blocks]"}));
  INFO(units.out << units.err);
  CHECK(says(units.out, "note: units are planned as auto"));
  CHECK(says(units.out, "not with the shard_size of the config"));
}

TEST_CASE("plan with --input says which values of the data it does not have") {
  const auto output = [](const std::vector<std::string>& more) {
    const Finished run = trainer(
        joined({"plan", "-c", FULGUR_CONFIGS "/gpt_shakespeare.yaml", "--input", "32:int64", "--input", "32:int64"},
               more),
        {.folder = {}, .environment = {"FULGUR_TEXT=missing.txt"}});
    INFO(run.out << run.err);
    CHECK(run.exit_code == 0);
    return run.out;
  };
  const std::string why = "what `link` takes from them has its default: set model.init_args.block_size";
  CHECK(says(output({}), why + ", model.init_args.vocab_size\n"));
  CHECK(says(output({"--model.vocab_size", "65"}), why + "\n"));
}

TEST_CASE("plan: the batch size of a described batch, and the simplest of the shardings that are as fast") {
  const std::vector<std::string> small{"plan",     "--model",
                                       "GPT",      "--model.vocab_size",
                                       "100",      "--model.block_size",
                                       "16",       "--optimizer",
                                       "AdamW",    "--optimizer.lr",
                                       "0.1",      "--input",
                                       "16:int64", "--input",
                                       "16:int64", "--json"};
  const auto planned = [&](const std::vector<std::string>& more) {
    const Finished run = trainer(joined(small, more));
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    return PlanReport::parse(run.out);
  };
  CHECK(planned({"--batch_size", "24"})["model"]["batch_size"] == 24);
  CHECK(planned({})["model"]["batch_size"] == 1);
  const PlanReport two = planned({"--devices", "2"});
  double fastest = 0;
  for (const auto& one : two["nodes"][0]["shardings"]) fastest = std::max(fastest, one["samples_per_s"].get<double>());
  for (const auto& one : two["nodes"][0]["shardings"]) {
    if (one["samples_per_s"].get<double>() < 0.95 * fastest) continue;
    CHECK(two["nodes"][0]["best"] == one["sharding"]);
    break;
  }
}

TEST_CASE("bench comm writes a profile of this machine, which plan reads") {
  const TemporaryFolder folder;
  const std::vector<std::string> bench{"bench", "comm", "--trainer.accelerator", "cpu", "--trainer.num_threads", "1"};
  const Finished measured =
      trainer(joined(bench, {"--trainer.devices", "2", "--output", "mine.yaml"}), {.folder = folder.path()});
  INFO(measured.out << measured.err);
  REQUIRE(measured.exit_code == 0);
  CHECK(says(measured.out, "sums over the 2 processes of a node"));
  const std::string text = read_text(folder / "mine.yaml");
  INFO(text);
  CHECK(says(text, "devices_per_node: 2"));
  CHECK(says(text, "inter is a copy of intra"));
  const Finished planned = trainer(joined({"plan", "--profile", "mine.yaml", "--nodes", "1,2", "--json"}, kLlama70B),
                                   {.folder = folder.path()});
  INFO(planned.err);
  CHECK(planned.exit_code == 0);
  // Without a file, the profile is all that is printed.
  const Finished printed = trainer(joined(bench, {"--trainer.devices", "3"}), {.folder = folder.path()});
  CHECK(printed.exit_code == 0);
  CHECK(printed.out.starts_with("# sums over the 3 processes"));
  CHECK(says(printed.out, "\nname: measured\n"));
  const Finished again =
      trainer(joined(bench, {"--trainer.devices", "2", "--output", "mine.yaml"}), {.folder = folder.path()});
  CHECK(again.exit_code == 2);
  CHECK(says(again.err, "mine.yaml exists"));
  CHECK(
      trainer(joined(bench, {"--trainer.devices", "2", "--output", "mine.yaml", "--force"}), {.folder = folder.path()})
          .exit_code == 0);
  CHECK(trainer(joined(bench, {"--trainer.devices", "1"})).exit_code == 2);
  CHECK(trainer({"bench", "disk"}).exit_code == 2);
  const Finished nowhere =
      trainer(joined(bench, {"--trainer.devices", "2", "--output", "missing/mine.yaml"}), {.folder = folder.path()});
  CHECK(nowhere.exit_code == 2);
}

TEST_CASE("plan refuses what it cannot plan") {
  const auto with = [](const std::vector<std::string>& more) { return joined(kMlp, more); };
  refused(with({"--nodes", "8..1"}), "--nodes takes numbers of nodes, as 4, 1,2,8 or 1..1024");
  refused(with({"--nodes", "many"}), "got 'many'");
  refused(with({"--input", "3,x"}), "got '3,x'");
  refused(with({"--trainer.strategy", "dp"}), "the config's strategy is dp");
  refused(with({"--optimizer", "LBFGS"}), "LBFGS evaluates the loss several times");
  refused({"--model", "MlpClassifier"}, "Set `data`, or describe the entries of a batch with --input");
  refused({}, "plan needs a model");
  // Outside of `plan`, the names are not options.
  const Finished fit = trainer({"fit", "--devices", "2"});
  CHECK(fit.exit_code == 2);
  CHECK(says(fit.err, "did you mean '--trainer.devices'?"));
}

TEST_CASE("plan shows tables for people, with reasons") {
  const Finished plan = trainer(plan_of(kMlp, {"--nodes", "1..4", "--devices", "8"}));
  INFO(plan.out << plan.err);
  CHECK(plan.exit_code == 0);
  for (const char* part : {"50.89 k parameters", "sharding", "save every", "4 nodes: ", "  not parameters: "})
    CHECK(says(plan.out, part));
}

namespace {

struct MemoryCase {
  const char* name;
  std::vector<std::string> options;
};

const std::vector<std::string> kImages{"--data", "SyntheticDataModule", "--data.num_train",
                                       "64",     "--data.num_val",      "8"};
const std::vector<std::string> kTokens{"--data",
                                       "TextDataModule",
                                       "--data.path",
                                       "text.txt",
                                       "--data.block_size",
                                       "128",
                                       "--data.batch_size",
                                       "8",
                                       "--model",
                                       "GPT",
                                       "--model.vocab_size",
                                       "2048",
                                       "--model.block_size",
                                       "128",
                                       "--model.n_embd",
                                       "256"};

std::vector<MemoryCase> memory_cases() {
  return {
      {"fully connected", joined(kImages, {"--model", "MlpClassifier", "--model.hidden", "[2048,2048]",
                                           "--data.batch_size", "32", "--optimizer", "AdamW"})},
      {"convolutions", joined(kImages, {"--model", "ResNet", "--model.depth", "20", "--data.shape", "[3,32,32]",
                                        "--data.batch_size", "16", "--optimizer", "SGD"})},
      {"attention in float32", joined(kTokens, {"--optimizer", "AdamW"})},
      {"dropout", joined(kTokens, {"--optimizer", "AdamW", "--model.dropout", "0.1"})},
      {"autocast", joined(kTokens, {"--optimizer", "AdamW", "--trainer.precision", "bf16-mixed"})},
      {"checkpointing", joined(kTokens, {"--optimizer", "AdamW", "--model.activation_checkpointing", "all"})},
  };
}

}  // namespace

TEST_CASE("plan predicts the memory that a fit needs on a GPU", "[gpu][bytes]") {
  require_gpus(1);
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += i % 3 == 0 ? "to be " : i % 5 == 0 ? "or not " : "that is ";
  write_text(folder / "text.txt", text);
  for (const MemoryCase& one : memory_cases()) {
    INFO(one.name);
    const std::vector<std::string> options =
        joined(one.options, {"--optimizer.lr", "1e-3", "--trainer.max_steps", "3", "--trainer.limit_val_batches", "0"});
    const PlanReport plan = planned(joined(options, {"--devices", "1"}), {.folder = folder.path()});
    const Finished run = trainer(joined({"fit", "--trainer.accelerator", "cuda", "--trainer.enable_progress_bar",
                                         "false", "--report", "report.json"},
                                        options),
                                 {.folder = folder.path()});
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    double counted = 0;
    const PlanReport report = PlanReport::parse(read_text(folder / "report.json"));
    for (const PlanReport& peak : report["peak_memory"])
      if (says(peak["device"], "cuda")) counted = peak["bytes"];
    CHECK_THAT(of_sharding(plan["as_configured"], "ddp")["memory"]["total"].get<double>(), WithinRel(counted, 0.05));
  }
}

TEST_CASE("plan: the configs of the repository can be planned") {
  const TemporaryFolder folder;
  for (const char* name : {"autoencoder.yaml", "fashion_mnist_cnn.yaml", "fashion_mnist_vae.yaml",
                           "fashion_mnist_resnet.yaml", "recipes/fashion_90.yaml", "recipes/fashion_94.yaml"}) {
    const Finished run =
        trainer({"plan", "-c", std::string(FULGUR_CONFIGS) + "/" + name, "--devices", "8", "--profile", "h100"},
                {.folder = folder.path()});
    CAPTURE(name, run.out, run.err);
    if (run.exit_code == 3) SKIP("the data set is not installed");
    CHECK(run.exit_code == 0);
  }
}

}  // namespace plan_test
