// `tune lr` and `tune batch_size`: what they print and write, and that what they suggest works.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "process.h"

namespace tune_verbs_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 2, num_threads: 1, log_every_n_steps: 1, enable_model_summary: false, num_sanity_val_steps: 0}
model: {class_path: MlpClassifier, init_args: {in_features: 64, num_classes: 3, hidden: [256]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 4096, num_val: 64, num_classes: 3, shape: [64], batch_size: 16}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";

struct Tune : TemporaryFolder {
  Tune() { write_text(*this / "c.yaml", kConfig); }
  Finished run(std::vector<std::string> arguments, std::vector<std::string> environment = {}) const {
    arguments.insert(arguments.end(), {"-c", "c.yaml"});
    return trainer(arguments, {.folder = path(), .environment = std::move(environment)});
  }
  Finished operator()(const std::string& what, const std::vector<std::string>& more = {},
                      std::vector<std::string> environment = {}) const {
    std::vector<std::string> arguments{"tune", what};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(std::move(arguments), std::move(environment));
  }
  Json report(const std::string& name = "r.json") const { return Json::parse(read_text(*this / name)); }
};

// An idx file of unsigned bytes.
std::string idx(const std::vector<uint32_t>& dims, const std::string& values) {
  std::string text = {'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const uint32_t size : dims)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(size >> shift & 255);
  return text + values;
}

// A data module with drop_last, and 64 training samples.
const std::vector<std::string> kDropsLast{"--data",
                                          "MnistDataModule",
                                          "--data.data_dir",
                                          ".",
                                          "--data.val_size",
                                          "16",
                                          "--data.drop_last",
                                          "true",
                                          "--data.batch_size",
                                          "8",
                                          "--model.in_features",
                                          "4",
                                          "--model.num_classes",
                                          "2"};

void write_images(const fs::path& folder) {
  for (const auto& [prefix, count] : {std::pair<std::string, uint32_t>{"train", 80}, {"t10k", 8}}) {
    std::string pixels, labels;
    for (uint32_t i = 0; i < count; ++i) {
      pixels += std::string(4, static_cast<char>(i));
      labels += static_cast<char>(i % 2);
    }
    write_text(folder / (prefix + "-images-idx3-ubyte"), idx({count, 2, 2}, pixels));
    write_text(folder / (prefix + "-labels-idx1-ubyte"), idx({count}, labels));
  }
}

std::string bytes(int64_t count) { return "FULGUR_VIRTUAL_MEMORY=" + std::to_string(count); }

}  // namespace

TEST_CASE("tune lr: prints a suggestion and how to use it, and writes only the curve") {
  const Tune tune;
  const Finished finished = tune("lr", {"--steps", "80", "--max_lr", "10", "--report", "r.json"});
  INFO(finished.out << finished.err);
  REQUIRE(finished.exit_code == 0);
  CHECK(says(finished.out, "suggested learning rate: "));
  CHECK(says(finished.out, "<- steepest descent"));
  CHECK(says(finished.out, "use it with: --optimizer.lr="));
  const Json report = tune.report();
  const auto lr = report["suggestion"].get<double>();
  CHECK(lr > 1e-8);
  CHECK(lr < 10);
  // It is printed with four digits.
  const size_t shown = finished.out.find("suggested learning rate: ") + 25;
  const std::string digits = finished.out.substr(shown, finished.out.find('\n', shown) - shown);
  CHECK(std::abs(std::stod(digits) / lr - 1) < 1e-3);
  CHECK(digits.size() <= 9);
  const std::string csv = read_text(tune / "lr_range_test.csv");
  CHECK(csv.starts_with("step,lr,loss,smoothed_loss\n1,1e-08,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + report["steps"].get<int64_t>());
  CHECK(says(read_text(tune / "lr_range_test.html"), "<svg"));
  // No run folder, and no other file.
  CHECK_FALSE(fs::exists(tune / "fulgur_logs"));
  CHECK(std::distance(fs::directory_iterator(tune.path()), fs::directory_iterator()) == 4);
  // The printed option is one that fit takes.
  const size_t at = finished.out.find("--optimizer.lr=");
  const std::string option = finished.out.substr(at, finished.out.find('\n', at) - at);
  CHECK(tune.run({"fit", option, "--trainer.max_steps", "2"}).exit_code == 0);
}

TEST_CASE("tune lr: an existing run stays as it is, and the same test has the same curve") {
  const Tune tune;
  REQUIRE(tune.run({"fit", "--trainer.max_steps", "3"}).exit_code == 0);
  const auto files = [&] {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::recursive_directory_iterator(tune / "fulgur_logs"))
      if (entry.is_regular_file()) contents[entry.path().string()] = read_text(entry.path());
    return contents;
  };
  const auto before = files();
  REQUIRE(tune("lr", {"--steps", "30", "--output", "a"}).exit_code == 0);
  REQUIRE(tune("lr", {"--steps", "30", "--output", "b"}).exit_code == 0);
  CHECK(files() == before);
  CHECK(read_text(tune / "a.csv") == read_text(tune / "b.csv"));
}

TEST_CASE("tune lr: too few steps for a suggestion are said") {
  const Tune tune;
  const Finished finished = tune("lr", {"--steps", "5", "--mode", "linear", "--min_lr", "0.01", "--max_lr", "0.05"});
  INFO(finished.out << finished.err);
  CHECK(finished.exit_code == 0);
  CHECK(says(finished.out, "no suggestion is possible: the curve has 5 finite steps"));
  CHECK(says(finished.out, "a test needs at least --steps 14; 5 were requested"));
  CHECK_FALSE(says(finished.out, "--optimizer.lr="));
  CHECK(says(read_text(tune / "lr_range_test.csv"), "\n2,0.02,"));
}

TEST_CASE("tune: the help names the options of both, and what else applies") {
  const std::string help = trainer({"tune", "--help"}).out;
  for (const char* option : {"--min_lr", "--max_lr", "--steps", "--mode", "--early_stop_threshold", "--output",
                             "--steps_per_trial", "--init", "--max_trials", "--margin", "--config", "--report"}) {
    INFO(option);
    CHECK(says(help, option));
  }
  CHECK(trainer({"tune"}).exit_code == 2);
}

TEST_CASE("tune: options of the other one, and values out of their range, are refused") {
  const Tune tune;
  const auto refused = [&](const std::string& what, const std::vector<std::string>& options, const std::string& text) {
    const Finished finished = tune(what, options);
    INFO(what << finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, text));
  };
  refused("lr", {"--init", "4"}, "--init is an option of tune batch_size");
  refused("lr", {"--mode", "power"}, "exponential or linear; got power");
  refused("lr", {"--min_lr", "1", "--max_lr", "0.1"}, "below max_lr");
  refused("lr", {"--early_stop_threshold", "0.5"}, "above 1; got 0.5");
  refused("batch_size", {"--steps", "4"}, "--steps is an option of tune lr");
  refused("batch_size", {"--mode", "linear"}, "power or binsearch; got linear");
  refused("batch_size", {"--init", "0"}, "init must be at least 1; got 0");
  refused("batch_size", {"--steps_per_trial", "0"}, "--steps_per_trial must be at least 1; got 0");
  refused("batch_size", {"--margin", "1"}, "margin");
  refused("lr", {"--mode", "binary"}, "--mode of tune lr is exponential or linear; got binary");
  refused("batch_size", {"--mode", "binary"}, "--mode of tune batch_size is power or binsearch; got binary");
  refused("momentum", {}, "got 'momentum'. Use tune lr or tune batch_size");
  refused("lr", {"--output", "nodir/lr"}, "--output needs a path where a file can be created; got 'nodir/lr.csv'");
}

TEST_CASE("tune batch_size: without a limit of memory it ends at the size of the data") {
  const Tune tune;
  const Finished finished = tune("batch_size", {"--data.num_train", "100", "--report", "r.json"});
  INFO(finished.out << finished.err);
  REQUIRE(finished.exit_code == 0);
  CHECK(says(finished.out, "128         no batch of this size in the data"));
  CHECK(says(finished.out, " MiB (cpu, resident)"));
  CHECK(says(finished.out, "suggested batch size: 64 (the data has no batch of 128 samples)"));
  CHECK(says(finished.out, "use it with: --data.batch_size=64"));
  // The config has lr 0.1 for batches of 16.
  CHECK(says(finished.out, "linear scaling:     --optimizer.lr=0.4"));
  CHECK(says(finished.out, "square-root scaling: --optimizer.lr=0.2"));
  CHECK(tune.report()["trials"].size() == 7);
  CHECK(tune.report()["trials"][0]["peak_bytes"].get<int64_t>() > 0);
  CHECK_FALSE(fs::exists(tune / "fulgur_logs"));
  const Finished few = tune("batch_size", {"--max_trials", "2", "--init", "8"});
  CHECK(says(few.out, "suggested batch size: 16 (max_trials (2) is reached)"));
  const Finished scaled =
      tune("batch_size", {"--max_trials", "1", "--trainer.scale_lr", "linear", "--trainer.base_batch_size", "16"});
  CHECK(says(scaled.out, "trainer.scale_lr: linear sets the learning rate"));
}

TEST_CASE("tune batch_size: the greatest batch that fits into a virtual device, and the next does not") {
  const Tune tune;
  const std::vector<std::string> memory{bytes(2 << 20)};
  const std::vector<std::string> device{"--trainer.accelerator", "virtual", "--trainer.devices", "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), device.begin(), device.end());
    return more;
  };
  const Finished finished =
      tune("batch_size", with({"--mode", "binsearch", "--margin", "0", "--report", "r.json"}), memory);
  INFO(finished.out << finished.err);
  REQUIRE(finished.exit_code == 0);
  CHECK(says(finished.out, "out of memory"));
  CHECK(says(finished.out, "does not fit into memory"));
  const Json report = tune.report();
  const auto size = report["suggestion"].get<int64_t>();
  CHECK(size > 16);
  CHECK(size < 4096);
  int64_t peak = 0;
  for (const Json& trial : report["trials"]) {
    if (trial["result"] != "fits") continue;
    CHECK(trial["device"] == "virtual:0");
    CHECK(trial["peak_bytes"].get<int64_t>() <= 2 << 20);
    if (trial["batch_size"] == size) peak = trial["peak_bytes"].get<int64_t>();
  }
  // Everything was freed between the trials: the last of them had all the memory.
  CHECK(peak > (2 << 20) * 9 / 10);
  const auto fits = [&](int64_t batch) {
    std::vector<std::string> arguments{"fit", "--data.batch_size", std::to_string(batch), "--trainer.max_steps", "3"};
    return tune.run(with(arguments), memory).exit_code == 0;
  };
  CHECK(fits(size * 9 / 10));
  CHECK_FALSE(fits(size * 2));
}

TEST_CASE("tune batch_size: a model that does not fit at all is an error") {
  const Tune tune;
  const Finished finished = tune(
      "batch_size", {"--trainer.accelerator", "virtual", "--trainer.devices", "1", "--init", "4"}, {bytes(1 << 16)});
  INFO(finished.out << finished.err);
  CHECK(finished.exit_code == 1);
  CHECK(says(finished.err, "not even one sample fits"));
}

TEST_CASE(
    "LearningRateFinder: the fit equals one with the rate in its config, to the bit, and a resume searches nothing") {
  const Tune tune;
  const std::vector<std::string> finder{"--trainer.callbacks+=LearningRateFinder", "--trainer.callbacks.steps", "60",
                                        "--trainer.callbacks.max_lr", "10"};
  const auto fit = [&](std::vector<std::string> more, const std::string& root) {
    std::vector<std::string> arguments{"fit", "--data.num_train", "256", "--trainer.default_root_dir", root};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tune.run(arguments);
  };
  const auto contents = [&](const std::string& root, const std::string& file) {
    return read_text(tune / root / "fulgur_logs/version_0" / file);
  };
  const Finished searched = fit(finder, "searched");
  INFO(searched.err);
  REQUIRE(searched.exit_code == 0);
  CHECK(says(searched.err, "LearningRateFinder: learning rate "));
  // No trial has left a run.
  CHECK(std::distance(fs::directory_iterator(tune / "searched/fulgur_logs"), fs::directory_iterator()) == 1);
  const std::string config = contents("searched", "config.yaml");
  const size_t at = config.find("found: ") + 7;
  const std::string lr = config.substr(at, config.find_first_of("}\n,", at) - at);
  const Finished given = fit({"--optimizer.lr", lr}, "given");
  REQUIRE(given.exit_code == 0);
  CHECK(contents("searched", "metrics.csv") == contents("given", "metrics.csv"));
  CHECK(contents("searched", "checkpoints/last.ckpt/model.safetensors") ==
        contents("given", "checkpoints/last.ckpt/model.safetensors"));
  // Three epochs in one run, and after two.
  std::vector<std::string> three = finder, resumed = finder;
  three.insert(three.end(), {"--trainer.max_epochs", "3"});
  resumed.insert(resumed.end(), {"--trainer.max_epochs", "3", "--resume"});
  REQUIRE(fit(three, "three").exit_code == 0);
  const Finished second = fit(resumed, "searched");
  INFO(second.err);
  REQUIRE(second.exit_code == 0);
  CHECK_FALSE(says(second.err, "LearningRateFinder: learning rate "));
  CHECK(contents("searched", "checkpoints/last.ckpt/model.safetensors") ==
        contents("three", "checkpoints/last.ckpt/model.safetensors"));
}

TEST_CASE("LearningRateFinder: scale_lr stays off in a resumed run, whose config has the result too") {
  const Tune tune;
  const std::vector<std::string> scaled{"--trainer.callbacks+=LearningRateFinder",
                                        "--trainer.callbacks.steps",
                                        "60",
                                        "--trainer.callbacks.max_lr",
                                        "10",
                                        "--trainer.scale_lr",
                                        "linear",
                                        "--trainer.base_batch_size",
                                        "2"};
  const auto fit = [&](const std::string& root, std::vector<std::string> more) {
    std::vector<std::string> arguments{"fit", "--data.num_train", "256", "--trainer.default_root_dir", root};
    arguments.insert(arguments.end(), scaled.begin(), scaled.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tune.run(arguments);
  };
  const auto contents = [&](const std::string& root, const std::string& file) {
    return read_text(tune / root / "fulgur_logs/version_0" / file);
  };
  const auto found = [&](const std::string& root) {
    const std::string config = contents(root, "config.yaml");
    const size_t at = config.find("found: ");
    return config.substr(at, config.find_first_of("}\n,", at) - at);
  };
  REQUIRE(fit("quiet", {}).exit_code == 0);
  REQUIRE(fit("stopped", {"--trainer.stop_after", "1ep"}).exit_code == 0);
  const Finished resumed = fit("stopped", {"--resume"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(says(resumed.err,
             "resume: trainer.scale_lr: none in the checkpoint, linear in the config; the run continues "
             "with none"));
  CHECK_FALSE(says(resumed.err, "rates of the checkpoint are multiplied"));
  CHECK_FALSE(says(resumed.err, "init_args.found"));
  CHECK(contents("stopped", "metrics.csv") == contents("quiet", "metrics.csv"));
  CHECK(contents("stopped", "checkpoints/last.ckpt/model.safetensors") ==
        contents("quiet", "checkpoints/last.ckpt/model.safetensors"));
  CHECK(found("quiet") != "found: null");
  CHECK(found("stopped") == found("quiet"));
  // Without the finder in the config, the rate of the checkpoint is still the one that was found.
  const Finished without =
      tune.run({"fit", "--data.num_train", "256", "--trainer.default_root_dir", "stopped", "--trainer.max_epochs", "3",
                "--trainer.scale_lr", "linear", "--trainer.base_batch_size", "2", "--resume"});
  INFO(without.err);
  CHECK(without.exit_code == 0);
  CHECK_FALSE(says(without.err, "rates of the checkpoint are multiplied"));
}

TEST_CASE("LearningRateFinder: options that the search would switch off are checked before it") {
  const Tune tune;
  const Finished alone = tune.run({"fit", "--trainer.callbacks+=LearningRateFinder", "--trainer.base_batch_size", "2"});
  INFO(alone.err);
  CHECK(alone.exit_code == 2);
  CHECK(says(alone.err, "[trainer.base_batch_size] this option has no effect without scale_lr"));
  CHECK_FALSE(says(alone.err, "LearningRateFinder: "));
}

TEST_CASE("BatchSizeFinder: a resumed run has the result in its config") {
  const Tune tune;
  const auto fit = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"fit", "--data.num_train", "100", "--trainer.callbacks+=BatchSizeFinder"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tune.run(arguments);
  };
  REQUIRE(fit({"--trainer.stop_after", "1ep"}).exit_code == 0);
  const Finished resumed = fit({"--resume"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK_FALSE(says(resumed.err, "BatchSizeFinder: batch size"));
  CHECK(says(read_text(tune / "fulgur_logs/version_0/config.yaml"), "found: 64"));
}

TEST_CASE("BatchSizeFinder: the fit equals one with the batch size in its config, to the bit") {
  const Tune tune;
  const auto fit = [&](std::vector<std::string> more, const std::string& root) {
    std::vector<std::string> arguments{"fit", "--data.num_train", "100", "--trainer.default_root_dir", root};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tune.run(arguments);
  };
  const Finished searched = fit({"--trainer.callbacks+=BatchSizeFinder", "--trainer.callbacks.init", "4"}, "searched");
  INFO(searched.err);
  REQUIRE(searched.exit_code == 0);
  CHECK(says(searched.err, "BatchSizeFinder: batch size 64 instead of 16"));
  REQUIRE(fit({"--data.batch_size", "64"}, "given").exit_code == 0);
  const auto contents = [&](const std::string& root, const std::string& file) {
    return read_text(tune / root / "fulgur_logs/version_0" / file);
  };
  CHECK(contents("searched", "metrics.csv") == contents("given", "metrics.csv"));
  CHECK(contents("searched", "checkpoints/last.ckpt/model.safetensors") ==
        contents("given", "checkpoints/last.ckpt/model.safetensors"));
}

TEST_CASE("finders: what cannot be found is an error or a warning") {
  const Tune tune;
  const Finished none = tune.run(
      {"fit", "--trainer.callbacks+=LearningRateFinder", "--trainer.callbacks.steps", "5", "--trainer.max_steps", "3"});
  INFO(none.err);
  CHECK(none.exit_code == 0);
  CHECK(says(none.err, "[cli.no_lr_suggestion]"));
  CHECK(says(none.err, "the learning rate of its config, 0.1"));
  const Finished ranks = tune.run({"fit", "--trainer.callbacks+=BatchSizeFinder", "--trainer.strategy", "ddp",
                                   "--trainer.accelerator", "cpu", "--trainer.devices", "2"});
  CHECK(ranks.exit_code == 2);
  CHECK(says(ranks.err, "tune batch_size"));
}

TEST_CASE("tune and the finders: stop_after of the config ends the fit, not the trials") {
  const Tune tune;
  const std::vector<std::string> stop{"--trainer.stop_after", "1ep"};
  const auto with_stop = [&](std::vector<std::string> more) {
    more.insert(more.end(), stop.begin(), stop.end());
    return more;
  };
  const Finished lr = tune("lr", with_stop({"--steps", "300", "--early_stop_threshold", "0", "--report", "r.json"}));
  INFO(lr.err);
  REQUIRE(lr.exit_code == 0);
  CHECK(tune.report()["steps"] == 300);  // an epoch has 256
  const Finished sizes = tune("batch_size", with_stop({"--max_trials", "2", "--init", "8"}));
  INFO(sizes.err);
  CHECK(sizes.exit_code == 0);
  CHECK(says(sizes.out, "suggested batch size: 16"));
  const Finished fit =
      tune.run(with_stop({"fit", "--trainer.callbacks+=LearningRateFinder", "--trainer.callbacks.steps", "40",
                          "--trainer.callbacks.max_lr", "10", "--report", "f.json"}));
  INFO(fit.err);
  CHECK(fit.exit_code == 0);
  CHECK(says(fit.err, "LearningRateFinder: learning rate "));
  CHECK(tune.report("f.json")["epochs"] == 1);
}

TEST_CASE("tune batch_size: data that drop an incomplete batch end the search, with one process and with two") {
  const Tune tune;
  write_images(tune.path());
  const auto sizes = [&](std::vector<std::string> more) {
    more.insert(more.end(), kDropsLast.begin(), kDropsLast.end());
    return tune("batch_size", more);
  };
  const std::vector<std::string> two{"--trainer.strategy", "ddp", "--trainer.accelerator", "cpu",
                                     "--trainer.devices",  "2"};
  const Finished one = sizes({});
  INFO(one.out << one.err);
  CHECK(one.exit_code == 0);
  CHECK(says(one.out, "suggested batch size: 64 (the data has no batch of 128 samples)"));
  const Finished ranks = sizes(two);
  INFO(ranks.out << ranks.err);
  CHECK(ranks.exit_code == 0);
  CHECK(says(ranks.out, "suggested batch size: 32 (the data has no batch of 64 samples)"));
  CHECK_FALSE(says(ranks.err, "error: "));
  // The first trial must show that the data can be read at all.
  std::vector<std::string> too_large = two;
  too_large.insert(too_large.end(), {"--init", "64"});
  const Finished none = sizes(too_large);
  INFO(none.err);
  CHECK(none.exit_code == 3);
  CHECK(says(none.err, "do not fill a batch of 64"));
}

TEST_CASE("tune batch_size: what a callback of the fit keeps in memory counts") {
  const Tune tune;
  const auto peak = [&](const std::string& callbacks, const std::string& accumulation = "1") {
    std::string config = kConfig;
    config.replace(config.find("max_epochs: 2,"), 0, "callbacks: [" + callbacks + "], ");
    write_text(tune / "c.yaml", config);
    const Finished finished =
        tune("batch_size",
             {"--trainer.accelerator", "virtual", "--trainer.devices", "1", "--init", "256", "--max_trials", "1",
              "--report", "r.json", "--trainer.accumulate_grad_batches", accumulation},
             {bytes(64 << 20)});
    INFO(callbacks << finished.err);
    REQUIRE(finished.exit_code == 0);
    return tune.report()["trials"][0]["peak_bytes"].get<int64_t>();
  };
  constexpr int64_t kParameters = (64 * 256 + 256 + 256 * 3 + 3) * 4;
  const int64_t plain = peak("");
  const int64_t accumulated = peak("", "4");
  CHECK(accumulated > plain + kParameters / 2);  // the gradients of the batch before
  CHECK(peak("{class_path: GradientAccumulationScheduler, init_args: {scheduling: {0: 1, 5: 4}}}") >
        plain + kParameters / 2);
  CHECK(peak("{class_path: BatchSizeScheduler, init_args: {every: 1ep, max: 1024, by: accumulation}}") >
        plain + kParameters / 2);
  CHECK(peak("{class_path: BatchSizeScheduler, init_args: {every: 1ep, max: 1024}}") < plain + kParameters / 2);
  for (const char* kind : {"ema", "swa"})
    CHECK(peak("{class_path: WeightAveraging, init_args: {kind: " + std::string(kind) + "}}") >
          plain + kParameters / 2);
}

TEST_CASE("LearningRateFinder: a fit that begins with imported weights searches") {
  const Tune tune;
  REQUIRE(tune.run({"fit", "--trainer.max_steps", "3"}).exit_code == 0);
  const std::string last = "fulgur_logs/version_0/checkpoints/last.ckpt";
  REQUIRE(trainer({"export", last, "--format", "pt"}, {.folder = tune.path()}).exit_code == 0);
  REQUIRE(tune.run({"import", "last.pt", "--output", "imported.ckpt"}).exit_code == 0);
  const std::vector<std::string> finder{"fit",
                                        "--trainer.max_steps",
                                        "5",
                                        "--trainer.callbacks+=LearningRateFinder",
                                        "--trainer.callbacks.steps",
                                        "60",
                                        "--trainer.callbacks.max_lr",
                                        "10",
                                        "--ckpt_path"};
  const auto from = [&](const std::string& checkpoint) {
    std::vector<std::string> arguments = finder;
    arguments.push_back(checkpoint);
    return tune.run(arguments);
  };
  const Finished imported = from("imported.ckpt");
  INFO(imported.err);
  CHECK(imported.exit_code == 0);
  CHECK(says(imported.err, "LearningRateFinder: learning rate "));
  // A checkpoint of a run is resumed, and has its rate.
  const Finished resumed = from(last);
  INFO(resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK_FALSE(says(resumed.err, "LearningRateFinder: learning rate "));
}

TEST_CASE("BatchSizeFinder: a fit whose batch size is also planned is refused before the search") {
  const Tune tune;
  for (const char* plan : {"{every: 1ep, max: 64}", "{every: 1ep, max: 64, by: accumulation}"}) {
    const Finished both = tune.run({"fit", "--trainer.callbacks",
                                    "[{class_path: LearningRateFinder}, {class_path: BatchSizeFinder}, "
                                    "{class_path: BatchSizeScheduler, init_args: " +
                                        std::string(plan) + "}]"});
    INFO(both.err);
    CHECK(both.exit_code == 2);
    CHECK(says(both.err, "the config has BatchSizeFinder and BatchSizeScheduler"));
    CHECK_FALSE(says(both.err, "batch size 2:"));
    CHECK_FALSE(says(both.err, "LearningRateFinder: "));
  }
  CHECK_FALSE(fs::exists(tune / "fulgur_logs"));
}

TEST_CASE("finders: a profile, validate and test of their config search nothing and are not refused") {
  const Tune tune;
  REQUIRE(tune.run({"fit", "--trainer.max_steps", "3"}).exit_code == 0);
  std::string config = kConfig;
  config.replace(config.find("max_epochs: 2,"), 0, "callbacks: [LearningRateFinder, BatchSizeFinder], ");
  config.replace(config.find("num_val: 64,"), 0, "num_test: 64, ");
  write_text(tune / "c.yaml", config);
  for (const std::vector<std::string>& verb : {std::vector<std::string>{"fit", "--profile", "3"},
                                               {"validate", "--ckpt_path", "last"},
                                               {"test", "--ckpt_path", "last"}}) {
    const Finished finished = tune.run(verb);
    INFO(verb.front() << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK_FALSE(says(finished.err, "LearningRateFinder: "));
    CHECK_FALSE(says(finished.err, "BatchSizeFinder: "));
  }
}

TEST_CASE("tune batch_size: data whose batches have another option are refused") {
  const Tune tune;
  CHECK(says(tune("batch_size", {"--data", "null"}).err, "the config names none"));
}

}  // namespace tune_verbs_test
