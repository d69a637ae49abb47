// What comes from outside and is not as it should be: full disks, damaged folders, sizes that no machine has.
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "process.h"

namespace hostile_inputs_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4]}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";

struct Folder : TemporaryFolder {
  Folder() { write_text(*this / "c.yaml", kConfig); }
  Finished operator()(std::vector<std::string> arguments, Start start = {}) const {
    start.folder = path();
    arguments.insert(arguments.end(), {"-c", "c.yaml"});
    return trainer(arguments, start);
  }
  fs::path run_dir() const { return *this / "fulgur_logs/version_0"; }
};

}  // namespace

TEST_CASE("F9 a run of which every checkpoint is damaged is not restarted unasked") {
  const Folder run;
  REQUIRE(run({"fit"}).exit_code == 0);
  for (const auto& checkpoint : fulgur::list_checkpoints(run.run_dir() / "checkpoints")) {
    std::string text = read_text(checkpoint.path / "model.safetensors");
    text.back() = static_cast<char>(text.back() ^ 1);
    write_text(checkpoint.path / "model.safetensors", text);
  }
  const Finished resumed = run({"fit", "--resume", "--trainer.max_epochs", "2"});
  INFO(resumed.err);
  CHECK(resumed.exit_code == 4);
  CHECK(says(resumed.err, "cannot be used and is skipped"));
  CHECK(says(resumed.err, "cannot be resumed"));
  CHECK(says(resumed.err, "omit --resume to start a new run"));
  CHECK_FALSE(fs::exists(run / "fulgur_logs/version_1"));
}

TEST_CASE("the report of a run that fails has its error and what is known") {
  const Folder run;
  // After its first checkpoint there is no room for another.
  const Finished failed = run({"fit", "--report", "r.json", "--trainer.max_epochs", "2", "--data.batch_size", "8",
                               "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "10",
                               "--trainer.callbacks.dirpath", "/proc/nowhere", "--trainer.async_checkpoint", "false",
                               "--trainer.log_every_n_steps", "5"});
  INFO(failed.err);
  CHECK(failed.exit_code == 4);
  const Json report = Json::parse(read_text(run / "r.json"));
  CHECK(report["verb"] == "fit");
  CHECK(report["exit_code"] == 4);
  CHECK(says(report["error"], "/proc/nowhere"));
  CHECK(says(report["run_dir"], "fulgur_logs/version_0"));
  CHECK(report["last_checkpoint"].is_null());
  // What it had reached.
  CHECK(report["stop_reason"] == "exception");
  CHECK(report["epochs"] == 1);
  CHECK(report["global_step"] == 10);
  CHECK(report["metrics"].contains("train_loss"));
  CHECK(report["metrics"].contains("val_loss"));
  CHECK(report["train_seconds"].get<double>() > 0);
  // Before there is a run folder.
  const Finished untrained = run({"test", "--ckpt_path", "absent.ckpt", "--report", "t.json"});
  CHECK(untrained.exit_code == 4);
  CHECK(says(Json::parse(read_text(run / "t.json"))["error"], "absent.ckpt"));
  CHECK(Json::parse(read_text(run / "t.json"))["run_dir"].is_null());
  // Before there is a config.
  CHECK(run({"fit", "--report", "c.json", "--trainer.max_epoch", "2"}).exit_code == 2);
  const Json of_config = Json::parse(read_text(run / "c.json"));
  CHECK(of_config["exit_code"] == 2);
  CHECK(says(of_config["error"], "max_epochs"));
}

TEST_CASE("F44 a fifo or folder in place of a file of the run folder is named, and nothing waits for it") {
  const Folder run;
  REQUIRE(run({"fit"}).exit_code == 0);
  const fs::path mark = run.run_dir() / "finished.json";
  fs::remove(mark);
  REQUIRE(::mkfifo(mark.c_str(), 0600) == 0);
  const Finished fifo = run({"fit", "--resume"});
  CHECK(fifo.exit_code == 1);
  CHECK(says(fifo.err, "finished.json is not a regular file but a fifo"));
  fs::remove(mark);
  fs::create_directory(mark);
  const Finished folder = run({"fit", "--resume"});
  CHECK(folder.exit_code == 1);
  CHECK(says(folder.err, "finished.json is not a regular file but a folder"));
  fs::remove(mark);
  // Metrics are not the run: it trains on, and says what it does not write.
  const fs::path table = run.run_dir() / "metrics.csv";
  fs::remove(table);
  REQUIRE(::mkfifo(table.c_str(), 0600) == 0);
  const Finished resumed = run({"fit", "--resume", "--trainer.max_epochs", "2"});
  INFO(resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK(says(resumed.err, "metrics.csv is not a regular file but a fifo"));
}

TEST_CASE("F5 a limit on the size of files is an error with a message, not the end by a signal") {
  const Folder run;
  const Finished limited = run({"fit", "--model.hidden", "[4096]"}, {.folder = {}, .file_size_kb = 64});
  INFO(limited.err);
  CHECK(limited.exit_code == 4);
  CHECK(says(limited.err, "File too large"));
}

TEST_CASE("sizes that no machine has are refused with the option's name") {
  const Folder run;
  const auto refuse = [&](const std::vector<std::string>& arguments, int code, const std::string& option) {
    std::vector<std::string> all{"fit"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Finished finished = run(all);
    INFO(finished.err);
    CHECK(finished.exit_code == code);
    CHECK(says(finished.err, option));
  };
  const std::string huge = "4611686018427387904";
  refuse({"--data.batch_size", huge}, 2, "batch_size");
  refuse({"--data.prefetch_factor", huge, "--data.num_workers", "2"}, 2, "prefetch_factor");
  refuse({"--data.num_workers", huge}, 2, "num_workers");
  refuse({"--data.shape", "[" + huge + "]"}, 2, "shape");
  refuse({"--model.hidden", "[" + huge + "]"}, 2, "hidden");
  // Within the bounds, and still more than there is: the first layer has 4 EB.
  refuse({"--model.in_features", "1000000000", "--model.hidden", "[1000000000, 8]"}, 1, "hidden: [1000000000, 8]");
  // Not of the option that is 0.
  refuse({"--model.in_features", "1000000000", "--model.hidden", "[1000000000, 8]"}, 1, "Is one of them too large?");
  refuse({"--data.shape", "[1000000000, 1000000000]"}, 2, "shape");
  refuse({"--data.shape", "[100000000, 100000000]"}, 3, "shape");
}

TEST_CASE("a constructor's error of LibTorch is shown with the sizes that it got") {
  const auto error_of = [](const char* heads) {
    const TemporaryFolder folder;
    const Finished run = trainer({"fit", "--plugin", FULGUR_PROBE_PLUGIN, "--model", "ProbeOperations", "--model.heads",
                                  heads, "--optimizer", "SGD", "--optimizer.lr", "0.1", "--data", "ProbeData"},
                                 {.folder = folder.path()});
    CHECK(run.exit_code == 1);
    return run.err;
  };
  const std::string four = error_of("4"), zero = error_of("0");
  CAPTURE(four, zero);
  CHECK(says(four,
             "the model ProbeOperations cannot be created; its sizes are needs_samples: 1, heads: 4. Its "
             "constructor has failed. LibTorch says: shape '[4, 1]' is invalid for input of size 6"));
  CHECK(says(zero, "A layer must have at least one input and one output, and heads is 0. LibTorch says: "));
}

}  // namespace hostile_inputs_test
