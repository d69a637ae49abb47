// Adapters from the command line: the verbs that know of them, and the recipe.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/safetensors.h"
#include "process.h"

namespace adapters_cli_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kBase = R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, callbacks: [{class_path: WeightAveraging, init_args: {decay: 0.5, copy_at_end: false}}]}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, batch_size: 16, num_classes: 3, shape: [4]}}
optimizer: {class_path: SGD, init_args: {lr: 0.5}}
)";
constexpr const char* kAdapters =
    "adapters: {target: [\"layers.*\"], rank: 2, alpha: 4, train: [\"layers.layer1.bias\"]}\n";

// A folder with the config `base.yaml`, `c.yaml` with adapters too, and a fit of the latter.
struct Adapted : TemporaryFolder {
  std::string shown, checkpoint;
  Adapted() {
    write_text(*this / "base.yaml", kBase);
    write_text(*this / "c.yaml", std::string(kBase) + kAdapters);
    const Finished fit = (*this)({"fit", "-c", "c.yaml", "--report", "fit.json"});
    INFO(fit.err);
    REQUIRE(fit.exit_code == 0);
    shown = fit.err;
    checkpoint = Json::parse(read_text(*this / "fit.json"))["last_checkpoint"].get<std::string>();
  }
  Finished operator()(const std::vector<std::string>& arguments) const {
    return trainer(arguments, {.folder = path()});
  }
  double test_loss(const std::vector<std::string>& how) const {
    std::vector<std::string> arguments{"test", "--report", "r.json"};
    arguments.insert(arguments.end(), how.begin(), how.end());
    const Finished test = (*this)(arguments);
    INFO(test.err);
    REQUIRE(test.exit_code == 0);
    return Json::parse(read_text(*this / "r.json"))["metrics"]["test_loss"].get<double>();
  }
};

std::vector<std::string> names_in(const fs::path& file) {
  std::vector<std::string> names;
  const fulgur::SafetensorsFile read = fulgur::read_safetensors(file);
  for (const auto& [name, tensor] : read.tensors) names.push_back(name);
  return names;
}

bool is_near(double a, double b) { return std::abs(a - b) < 1e-5; }

}  // namespace

TEST_CASE("a fit with adapters says so; export merges them, and tests agree however they are loaded") {
  const Adapted run;
  CHECK(says(run.shown, "adapters: 2 layers, rank 2, alpha 4.0; 49 of 113 parameters are trained"));
  CHECK(says(run.shown, "[cli.untrained_base]"));
  // WeightAveraging replaces the weights in tests of a config that lists it, with and without separate adapters.
  const double adapted = run.test_loss({"-c", "c.yaml", "--ckpt_path", run.checkpoint, "--trainer.callbacks", "[]"});
  CHECK_FALSE(is_near(adapted, run.test_loss({"-c", "base.yaml", "--trainer.callbacks", "[]"})));
  CHECK(
      is_near(adapted, run.test_loss({"-c", "base.yaml", "--ckpt_path", run.checkpoint, "--trainer.callbacks", "[]"})));
  REQUIRE(run({"export", run.checkpoint, "--output", "merged.safetensors"}).exit_code == 0);
  for (const std::string& name : names_in(run / "merged.safetensors")) CHECK_FALSE(says(name, "lora"));
  CHECK(is_near(adapted, run.test_loss({"-c", "base.yaml", "--pretrained.path", "merged.safetensors",
                                        "--trainer.callbacks", "[]"})));
  const double averaged = run.test_loss({"-c", "c.yaml", "--ckpt_path", run.checkpoint});
  CHECK_FALSE(is_near(averaged, adapted));
  CHECK(is_near(averaged, run.test_loss({"-c", "base.yaml", "--ckpt_path", run.checkpoint})));
  REQUIRE(run({"export", run.checkpoint, "--output", "averaged.pt", "--averaged"}).exit_code == 0);
  REQUIRE(run({"import", "averaged.pt", "-c", "base.yaml", "--output", "averaged.ckpt"}).exit_code == 0);
  const double imported =
      run.test_loss({"-c", "base.yaml", "--ckpt_path", "averaged.ckpt", "--trainer.callbacks", "[]"});
  CHECK(is_near(averaged, imported));
  const Finished resumed = run({"fit", "-c", "c.yaml", "--resume", "--trainer.max_epochs", "2"});
  CHECK(resumed.exit_code == 0);
  CHECK_FALSE(says(resumed.err, "untrained_base"));
}

TEST_CASE("export --only_adapters writes what adapters.path reads") {
  const Adapted run;
  const Finished exported = run({"export", run.checkpoint, "--only_adapters", "--output", "alone"});
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  CHECK(exported.out == "alone\n");
  CHECK(names_in(run / "alone/adapter_model.safetensors").size() == 5);
  CHECK(Json::parse(read_text(run / "alone/adapter_config.json"))["lora_alpha"] == 4.0);
  // The base model is drawn from the same seed.
  CHECK(run.test_loss({"-c", "c.yaml", "--adapters.path", "alone", "--trainer.callbacks", "[]"}) ==
        run.test_loss({"-c", "c.yaml", "--ckpt_path", run.checkpoint, "--trainer.callbacks", "[]"}));
  const Finished again = run({"export", run.checkpoint, "--only_adapters", "--output", "alone"});
  CHECK(again.exit_code == 4);
  CHECK(says(again.err, "exists already"));
  CHECK(run({"export", run.checkpoint, "--only_adapters", "--output", "alone", "--force"}).exit_code == 0);
  const Finished format = run({"export", run.checkpoint, "--only_adapters", "--format", "pt"});
  CHECK(format.exit_code == 2);
  CHECK(says(format.err, "--format has no effect"));
  const Finished file = run({"export", run.checkpoint, "--only_adapters", "--output", "ad.safetensors"});
  CHECK(file.exit_code == 2);
  CHECK(says(file.err, "--output ad.safetensors has the name of a file. Name a folder, such as ad."));
  CHECK_FALSE(fs::exists(run / "ad.safetensors"));
  const Finished other = run({"test", "-c", "c.yaml", "--adapters.path", "alone", "--adapters.alpha", "8"});
  CHECK(other.exit_code == 4);
  CHECK(says(other.err, "Set adapters.alpha to 4.0"));
  REQUIRE(run({"fit", "-c", "base.yaml", "--report", "plain.json"}).exit_code == 0);
  const std::string plain = Json::parse(read_text(run / "plain.json"))["last_checkpoint"];
  const Finished none = run({"export", plain, "--only_adapters"});
  CHECK(none.exit_code == 4);
  CHECK(says(none.err, "has none"));
}

TEST_CASE("a fit resumes only with the adapters of its checkpoint, and a pattern without a match is exit code 2") {
  const Adapted run;
  fs::copy(run / run.checkpoint, run / "kept.ckpt", fs::copy_options::recursive);  // outside of the run's folder
  const auto resumed = [&](const std::string& config, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"fit", "-c", config, "--ckpt_path", "kept.ckpt", "--trainer.max_epochs", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  for (const auto& [key, value] : {std::pair("--adapters.rank", "3"), std::pair("--adapters.dropout", "0.1")}) {
    const Finished other = resumed("c.yaml", {key, value});
    CHECK(other.exit_code == 4);
    CHECK(says(other.err, std::string(key).substr(2) + ": "));
  }
  CHECK(resumed("base.yaml", {}).exit_code == 4);
  const Finished changed = resumed("c.yaml", {"--adapters.dropout", "0.1", "--allow-config-change"});
  INFO(changed.err);
  CHECK(changed.exit_code == 0);
  const Finished same = resumed("c.yaml", {"--adapters.path", "absent"});
  INFO(same.err);
  CHECK(same.exit_code == 0);
  const Finished unknown = run({"fit", "-c", "c.yaml", "--adapters.target", "[\"layer1\"]"});
  CHECK(unknown.exit_code == 2);
  CHECK(says(unknown.err, "the pattern 'layer1' matches none"));
}

TEST_CASE("adapters of other layers need the former ones to be merged first") {
  const Adapted run;
  const auto again = [&](const std::string& verb, std::vector<std::string> more) {
    std::vector<std::string> arguments{verb, "-c", "c.yaml", "--trainer.callbacks", "[]"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const std::string one = R"(["layers.layer1"])";
  const Finished other =
      again("fit", {"--ckpt_path", run.checkpoint, "--load.weights_only", "true", "--adapters.target", one});
  CHECK(other.exit_code == 4);
  CHECK(
      says(other.err, "adapters.target must name the layers whose adapters the checkpoint has; it leaves out layers."));
  CHECK(says(other.err, "trainer export CHECKPOINT --output merged.safetensors"));
  const Finished tested = again("test", {"--ckpt_path", run.checkpoint, "--adapters.target", one});
  CHECK(tested.exit_code == 4);
  CHECK(says(tested.err, "leave adapters out of the config"));
  // As the message says.
  REQUIRE(run({"export", run.checkpoint, "--output", "merged.safetensors"}).exit_code == 0);
  const Finished merged = again("fit", {"--pretrained.path", "merged.safetensors", "--adapters.target", one});
  INFO(merged.err);
  CHECK(merged.exit_code == 0);
}

TEST_CASE("copies on several devices of one process have the adapters, too") {
  const TemporaryFolder folder;
  const auto val_loss = [&](const std::vector<std::string>& how) {
    std::vector<std::string> arguments{"fit",
                                       "--config",
                                       std::string(FULGUR_CONFIGS) + "/autoencoder.yaml",
                                       "--trainer.default_root_dir",
                                       folder.path().string(),
                                       "--trainer.max_epochs",
                                       "2",
                                       "--trainer.num_threads",
                                       "1",
                                       "--data",
                                       "SyntheticDataModule",
                                       "--data.num_train",
                                       "64",
                                       "--data.num_val",
                                       "32",
                                       "--data.batch_size",
                                       "16",
                                       "--report",
                                       (folder / "r.json").string()};
    arguments.insert(arguments.end(), how.begin(), how.end());
    const Finished fitted = trainer(arguments, {.folder = folder.path()});
    INFO(fitted.err);
    REQUIRE(fitted.exit_code == 0);
    return Json::parse(read_text(folder / "r.json"))["metrics"]["val_loss"].get<double>();
  };
  const std::vector<std::string> adapters{"--adapters.target", "['*']", "--adapters.rank", "4"};
  const auto on_devices = [&](const std::string& count, const std::string& strategy) {
    std::vector<std::string> how = adapters;
    how.insert(how.end(),
               {"--trainer.accelerator", "virtual", "--trainer.devices", count, "--trainer.strategy", strategy});
    return val_loss(how);
  };
  const double one = val_loss(adapters);
  CHECK(std::abs(one - val_loss({})) > 1e-4);
  CHECK(std::abs(one - on_devices("2", "dp")) < 1e-5);
  CHECK(std::abs(one -
                 on_devices("2", "{class_path: model_parallel, init_args: {placement: {encoder: 0, decoder: 1}}}")) <
        1e-5);
  CHECK(std::abs(one - on_devices("4",
                                  "{class_path: hybrid, init_args: {placement: {encoder: [0..1], decoder: [2..3]}, "
                                  "micro_batches: 2}}")) < 1e-5);
}

TEST_CASE("gpt_lora.yaml: a base model is trained, adapted to another text, and exported") {
  const TemporaryFolder folder;
  std::string general, special;
  for (int i = 0; i < 1500; ++i) {
    general += "to be or not " + std::to_string(i) + " that is ";
    special += "yes no " + std::to_string(i) + " maybe so ";
  }
  write_text(folder / "general.txt", general);
  write_text(folder / "special.txt", special);
  const auto tokenize = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "tokenize");
    arguments.insert(arguments.end(), {"--val_fraction", "0.05", "--quiet"});
    const Finished made = trainer(arguments, {.folder = folder.path()});
    INFO(made.err);
    REQUIRE(made.exit_code == 0);
  };
  tokenize({"--train", "bpe", "--vocab_size", "300", "--input", "general.txt", "--output", "general"});
  tokenize({"--tokenizer", "general", "--input", "special.txt", "--output", "special"});
  const auto run = [&](const std::string& tokens, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--config", std::string(FULGUR_CONFIGS) + "/recipes/gpt_lora.yaml", "--trainer.num_threads", "1",
                      "--trainer.limit_val_batches", "2", "--trainer.val_check_interval", "20", "--model.n_layer", "2",
                      "--model.n_embd", "32", "--optimizer.lr", "0.01", "--lr_scheduler", "null"});
    return trainer(arguments, {.folder = folder.path(),
                               .environment = {"FULGUR_TOKENS=" + tokens, "FULGUR_BASE=base.safetensors"}});
  };
  const auto fit = [&](const std::string& tokens, const std::string& report, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"fit", "--report", report});
    const Finished fitted = run(tokens, arguments);
    INFO(fitted.err);
    REQUIRE(fitted.exit_code == 0);
    return std::pair(fitted.err, Json::parse(read_text(folder / report)));
  };
  const auto base =
      fit("general", "base.json", {"--adapters", "null", "--pretrained", "null", "--trainer.max_steps", "20"}).second;
  const std::string checkpoint = base["last_checkpoint"];
  REQUIRE(trainer({"export", checkpoint, "--output", "base.safetensors"}, {.folder = folder.path()}).exit_code == 0);
  const auto [shown, adapted] = fit("special", "adapted.json", {"--trainer.max_steps", "60"});
  CHECK(says(shown, "adapters: 8 layers, rank 8, alpha 16.0"));
  // The base model, which has not seen the text, is worse on it.
  const Finished tested = run("special", {"validate", "--adapters", "null", "--report", "before.json"});
  INFO(tested.err);
  REQUIRE(tested.exit_code == 0);
  const double before = Json::parse(read_text(folder / "before.json"))["metrics"]["val_loss"];
  CHECK(adapted["metrics"]["val_loss"].get<double>() < before - 0.02);
  const std::string last = adapted["last_checkpoint"];
  REQUIRE(trainer({"export", last, "--output", "adapted.safetensors"}, {.folder = folder.path()}).exit_code == 0);
  CHECK(names_in(folder / "adapted.safetensors") == names_in(folder / "base.safetensors"));
  // From the checkpoint instead of the file.
  fit("special", "other.json",
      {"--pretrained", "null", "--ckpt_path", checkpoint, "--load.weights_only", "true", "--trainer.max_steps", "2"});
}

}  // namespace adapters_cli_test
