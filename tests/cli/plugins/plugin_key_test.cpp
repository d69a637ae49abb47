// The key `plugin` of a config, and `--plugin`, which adds to it.
#include <catch2/catch_test_macros.hpp>

#include "cli/process.h"

namespace plugin_key_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const std::string kRun = R"(
seed_everything: 3
trainer: {max_steps: 6, num_threads: 1, accelerator: cpu, enable_progress_bar: false, enable_model_summary: false}
optimizer: {class_path: SGD, init_args: {lr: 0.05}}
)";
const std::string kProbe = kRun + "model: ProbeNet\ndata: ProbeData\n";
const std::string kBuiltIn = kRun + R"(
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4], batch_size: 8}}
)";

/// `configs/lib/probe.so` is the plug-in of the tests.
struct Place {
  TemporaryFolder temporary;
  fs::path folder = fs::canonical(temporary.path());
  fs::path plugin = folder / "configs/lib/probe.so";
  Place() {
    fs::create_directories(plugin.parent_path());
    fs::copy_file(FULGUR_PROBE_PLUGIN, plugin);
  }
  Finished run(const std::vector<std::string>& arguments, std::vector<std::string> environment = {}) const {
    return trainer(arguments, {.folder = folder, .environment = std::move(environment)});
  }
  std::string saved(const std::string& root = ".") const {
    return read_text(folder / root / "fulgur_logs/version_0/config.yaml");
  }
};

std::string weights(const fs::path& run) { return read_text(run / "checkpoints/last.ckpt/model.safetensors"); }

}  // namespace

TEST_CASE("plugin: its path begins at the folder of the config, and the saved config trains and resumes anywhere") {
  const Place place;
  write_text(place.folder / "configs/c.yaml", "plugin: [lib/probe.so]\n" + kProbe);
  // `hidden` can be set only if the class is known before the command line is read.
  const Finished fit = place.run({"fit", "-c", "configs/c.yaml", "--model.hidden", "5"});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  CHECK(says(place.saved(), place.plugin.string()));
  CHECK(says(place.saved(), "hidden: 5"));

  // From another folder, interrupted and resumed, with the saved config alone.
  const fs::path again = place.folder / "elsewhere/again", whole = place.folder / "elsewhere/whole";
  fs::create_directories(again);
  const std::string saved = (place.folder / "elsewhere/saved.yaml").string();
  write_text(saved, place.saved());
  const auto train = [&](const fs::path& root, const std::string& steps) {
    return trainer(
        {"fit", "-c", saved, "--resume", "--trainer.max_steps", steps, "--trainer.default_root_dir", root.string()},
        {.folder = again});
  };
  for (const auto& [root, steps] : {std::pair{again, "3"}, {again, "9"}, {whole, "9"}}) {
    const Finished end = train(root, steps);
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
  }
  CHECK(weights(again / "fulgur_logs/version_0") == weights(whole / "fulgur_logs/version_0"));
  CHECK(says(read_text(again / "fulgur_logs/version_0/config.yaml"), place.plugin.string()));
}

TEST_CASE("plugin: --plugin adds to the list, each file once, and references are resolved") {
  const Place place;
  write_text(place.folder / "c.yaml", kProbe);
  const std::string file = place.plugin.string();
  const Finished added = place.run({"fit", "-c", "c.yaml", "--plugin", "configs/lib/probe.so"});
  INFO(added.err);
  REQUIRE(added.exit_code == 0);
  CHECK(says(place.saved(), file));

  write_text(place.folder / "c.yaml", "plugin: ['${env:PROBES}/probe.so']\n" + kProbe);
  for (const std::string& option : {std::string("--plugin"), std::string("--plugin+")}) {
    const Finished shown =
        place.run({"config", "-c", "c.yaml", option, file}, {"PROBES=" + place.plugin.parent_path().string()});
    INFO(shown.err);
    REQUIRE(shown.exit_code == 0);
    const size_t found = shown.out.find(file);
    REQUIRE(found != std::string::npos);
    CHECK(shown.out.find(file, found + 1) == std::string::npos);
  }
  const Finished of_variable = place.run({"config", "-c", "c.yaml"}, {"FULGUR_PLUGIN=[configs/lib/probe.so]"});
  INFO(of_variable.err);
  CHECK(of_variable.exit_code == 0);
  CHECK(says(of_variable.out, file));
  // A later file replaces the list.
  write_text(place.folder / "none.yaml", "plugin: []\n");
  const Finished without = place.run({"config", "-c", "c.yaml", "-c", "none.yaml"}, {"PROBES=configs"});
  CHECK(without.exit_code == 2);
  CHECK(says(without.err, "unknown model 'ProbeNet'"));
}

TEST_CASE("plugin: a file that is missing, or no plug-in, is an error with its place") {
  const Place place;
  const auto check = [&](const std::string& yaml) {
    write_text(place.folder / "configs/c.yaml", yaml + kProbe);
    const Finished end = place.run({"config", "-c", "configs/c.yaml"});
    CHECK(end.exit_code == 2);
    return end.err;
  };
  const std::string missing = check("plugin:\n  - lib/probe.so\n  - lib/no.so\n");
  CHECK(says(missing,
             "configs/c.yaml:3:5: plugin.1: there is no file '" + (place.folder / "configs/lib/no.so").string() + "'"));
  CHECK_FALSE(says(missing, "unknown model"));
  write_text(place.folder / "configs/lib/no.so", "not a library");
  const std::string damaged = check("plugin: [lib/no.so]\n");
  CHECK(says(damaged, "configs/c.yaml:1:10: plugin.0: the plug-in '"));
  CHECK(says(damaged, "cannot be loaded: "));
  CHECK(says(check("plugin: lib/probe.so\n"), "plugin: expected list of string"));
  CHECK(says(check("plugin: ['${env:FULGUR_NOT_SET}/a.so']\n"), "FULGUR_NOT_SET"));
}

TEST_CASE("plugin: list, describe and schema know the classes of a config's plug-ins, and read no more of it") {
  const Place place;
  // Not all of it is right.
  write_text(place.folder / "configs/c.yaml", "plugin: [lib/probe.so]\nmodel: NoSuchModel\n");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"list", "model", "-c", "configs/c.yaml"},
                                                    {"describe", "ProbeNet", "--config", "configs/c.yaml"},
                                                    {"schema", "-c", "configs/c.yaml"}}) {
    const Finished shown = place.run(arguments);
    INFO(arguments.front() << shown.err);
    CHECK(shown.exit_code == 0);
    CHECK(says(shown.out, "ProbeNet"));
    CHECK(says(place.run({arguments.front(), "--help"}).out, "--config"));
    CHECK_FALSE(says(place.run({arguments.front(), "--help"}).out, "any key of the config"));
  }
  CHECK_FALSE(says(place.run({"schema"}).out, "ProbeNet"));
  CHECK(says(place.run({"describe", "ProbeNet"}, {"FULGUR_PLUGIN=[configs/lib/probe.so]"}).out, "ProbeNet"));
  const auto refused = [&](const std::string& yaml) {
    write_text(place.folder / "configs/c.yaml", yaml);
    const Finished end = place.run({"list", "model", "-c", "configs/c.yaml"});
    CHECK(end.exit_code == 2);
    CHECK(end.out.empty());
    return end.err;
  };
  CHECK(says(refused("plugin: lib/probe.so\n"), "configs/c.yaml:1:9: plugin: expected list of string"));
  CHECK(says(refused("plugin: ['${env:FULGUR_NOT_SET}/a.so']\n"), "FULGUR_NOT_SET"));
  CHECK(says(refused("plugin: [lib/no.so]\n"), "there is no file '"));
  CHECK(says(refused("plugin: [\n"), "is not valid YAML"));
  CHECK(says(place.run({"list", "-c", "none.yaml"}).err, "none.yaml: cannot be opened"));
}

TEST_CASE("plugin: what a checkpoint names is not loaded, neither by a resume nor by a test or an export") {
  const Place place;
  write_text(place.folder / "c.yaml", kBuiltIn);
  const std::string checkpoint = "fulgur_logs/version_0/checkpoints/last.ckpt";
  const Finished fit = place.run({"fit", "-c", "c.yaml", "--plugin", place.plugin.string()});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  REQUIRE(says(read_text(place.folder / checkpoint / "state.json"), place.plugin.string()));
  // Loading it would be an error now.
  write_text(place.plugin, "not a library");
  REQUIRE(place.run({"config", "-c", "c.yaml", "--plugin", place.plugin.string()}).exit_code == 2);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"test", "-c", "c.yaml", "--ckpt_path", checkpoint},
        {"export", checkpoint, "--format", "torchscript"},
        {"fit", "-c", "c.yaml", "--resume", "--trainer.max_steps", "9"}}) {
    const Finished end = place.run(arguments);
    INFO(end.err);
    CHECK(end.exit_code == 0);
    CHECK_FALSE(says(end.err, "plugin"));
  }
  CHECK_FALSE(says(place.saved(), place.plugin.string()));
}

TEST_CASE("plugin: an export of a model that a plug-in registers names the plug-in that is missing") {
  const Place place;
  write_text(place.folder / "c.yaml", kProbe);
  const std::string plugin = place.plugin.string();
  REQUIRE(place.run({"fit", "-c", "c.yaml", "--plugin", plugin}).exit_code == 0);
  const Finished refused =
      place.run({"export", "fulgur_logs/version_0/checkpoints/last.ckpt", "--format", "torchscript"});
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK(says(refused.err, "unknown model 'ProbeNet'"));
  CHECK(says(refused.err, "add --plugin " + plugin));
}

TEST_CASE("plugin: the trials of a sweep have the plug-ins of the config, and so has the config of the best one") {
  const Place place;
  write_text(place.folder / "configs/c.yaml", "plugin: [lib/probe.so]\n" + kProbe);
  write_text(place.folder / "s.yaml", "method: grid\nmetric: val_loss\nspace: {model.hidden: [5]}\n");
  const Finished sweep = place.run(
      {"sweep", "-c", "configs/c.yaml", "--model.dropout", "0.1", "--trainer.max_steps", "8", "--sweep", "s.yaml"});
  INFO(sweep.out << sweep.err);
  REQUIRE(sweep.exit_code == 0);
  const std::string best = read_text(place.folder / "sweeps/s/best.yaml");
  CHECK(says(best, place.plugin.string()));
  CHECK(says(best, "hidden: 5"));
  CHECK(says(best, "dropout: 0.1"));
}

TEST_CASE("plugin: an option takes one value, so names of components and files may come after it") {
  const Place place;
  const std::string plugin = place.plugin.string();
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"list", "--plugin", plugin, "model"},
                                                    {"describe", "--plugin=" + plugin, "ProbeNet"}}) {
    const Finished shown = place.run(arguments);
    INFO(shown.err);
    CHECK(shown.exit_code == 0);
    CHECK(says(shown.out, "ProbeNet"));
  }
  write_text(place.folder / "c.yaml", kBuiltIn);
  write_text(place.folder / "more.yaml", kBuiltIn);
  const Finished extra = place.run({"config", "-c", "c.yaml", "more.yaml"});
  CHECK(extra.exit_code == 2);
  CHECK(says(extra.err, "more.yaml"));
}

TEST_CASE("plugin: a library that registers no component is named in a warning") {
  const Place place;
  const Finished finished = place.run({"list", "model", "--plugin", "libm.so.6"});
  // Not in this folder.
  CHECK(finished.exit_code == 2);
  const Finished warned = place.run({"list", "model", "--plugin", FULGUR_FAKE_DRIVER "/libcuda.so.1"});
  CHECK(warned.exit_code == 0);
  CHECK(says(warned.err, "registers no component"));
  CHECK_FALSE(says(place.run({"list", "model", "--plugin", place.plugin.string()}).err, "registers no component"));
}

TEST_CASE("an unknown verb is named, whatever options follow it") {
  const Finished finished = trainer({"greet", "--name", "x"});
  CHECK(finished.exit_code == 2);
  CHECK(says(finished.err, "there is no verb 'greet'"));
  CHECK(says(finished.err, "--plugin"));
}

}  // namespace plugin_key_test
