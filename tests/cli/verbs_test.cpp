#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "process.h"

namespace verbs_test {

using namespace fulgur::test;
using Json = nlohmann::json;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4]}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

size_t files_in(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::recursive_directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("describe lists what a data module provides for links") {
  const auto shown = [](const char* name) { return trainer({"describe", name}).out; };
  CHECK(says(shown("ArrayDataModule"),
             "Provides for link, as data.NAME: num_features; task, num_outputs by the targets"));
  CHECK(says(shown("LabelledTextDataModule"), "max_length"));
  CHECK(says(shown("ImageFolderDataModule"), "Provides for link, as data.NAME: num_classes, classes"));
  CHECK_FALSE(says(shown("MlpClassifier"), "Provides for link"));
  CHECK(says(shown("trainer"), "allocator.keep_freed_memory"));
  CHECK(says(shown("config"), "load.weights_only"));
  CHECK_FALSE(says(shown("config"), "trainer.max_epochs"));
}

TEST_CASE("one config serves fit, validate, test and predict") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto run = [&](std::vector<std::string> arguments, const std::string& report) {
    arguments.insert(arguments.end(), {"--config", "c.yaml", "--report", report});
    return trainer(arguments, {.folder = folder.path()});
  };
  const Finished fit = run({"fit"}, "fit.json");
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  CHECK(says(fit.out, "val_acc"));
  CHECK(last_line(fit.out).starts_with("└"));
  const Json fitted = Json::parse(read_text(folder / "fit.json"));
  CHECK(fitted["verb"] == "fit");
  CHECK(fitted["exit_code"] == 0);
  CHECK(fitted["epochs"] == 1);
  CHECK(fitted["global_step"] == 1);
  CHECK(fitted["metrics"].contains("train_loss"));
  CHECK(fitted["train_seconds"].is_number());
  CHECK(std::filesystem::exists(folder / "fulgur_logs/version_0/config.yaml"));
  CHECK(fitted["last_checkpoint"].is_string());

  const Finished validate = run({"validate", "--ckpt_path", "last"}, "validate.json");
  INFO(validate.err);
  REQUIRE(validate.exit_code == 0);
  CHECK_FALSE(says(validate.err, "cli.untrained_weights"));
  CHECK(says(run({"validate"}, "untrained.json").err, "the weights are newly initialized"));
  const Json validated = Json::parse(read_text(folder / "validate.json"));
  CHECK(validated["metrics"]["val_acc"] == fitted["metrics"]["val_acc"]);
  CHECK(validated["metrics"]["val_loss"] == fitted["metrics"]["val_loss"]);
  CHECK(validated["samples"] == 32);
  CHECK(validated["loaders"].size() == 1);
  CHECK(validated["checkpoint"].is_string());

  const Finished test = run({"test", "--ckpt_path", "best"}, "test.json");
  CHECK(test.exit_code == 0);
  CHECK(says(test.out, "test_acc"));
  const Finished predict = run({"predict", "--ckpt_path", "last"}, "predict.json");
  INFO(predict.err);
  REQUIRE(predict.exit_code == 0);
  const Json predicted = Json::parse(read_text(folder / "predict.json"));
  CHECK(predicted["samples"] == 32);
  REQUIRE(predicted["files"].size() > 0);
  CHECK(says(predict.out, predicted["files"][0].get<std::string>()));

  // The resolved config of the run reproduces it.
  const Finished again =
      trainer({"fit", "-c", "fulgur_logs/version_0/config.yaml", "--report", "again.json"}, {.folder = folder.path()});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(Json::parse(read_text(folder / "again.json"))["metrics"] == fitted["metrics"]);
}

TEST_CASE("a run computes with as many threads as OpenMP gives it") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 2, enable_progress_bar: false}
model: {class_path: MlpClassifier, init_args: {in_features: 784, num_classes: 10, hidden: [1024]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 512, num_val: 256, num_classes: 10, shape: [784], batch_size: 128}}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
)");
  // oneDNN leaves out what the threads that are refused would have computed.
  const auto loss = [&](const std::string& variable, const std::string& threads) {
    const Finished done = trainer({"fit", "--config", "c.yaml", "--report", "r.json", "--trainer.cpu_matmul", "auto"},
                                  {.folder = folder.path(), .environment = {variable}});
    CAPTURE(variable, done.err);
    REQUIRE(done.exit_code == 0);
    CHECK(says(done.err, "threads: " + threads + " "));
    CHECK(says(done.err, "[trainer.few_threads]") == (threads == "1"));
    return Json::parse(read_text(folder / "r.json"))["metrics"]["val_loss"].get<double>();
  };
  const double expected = loss("OMP_DYNAMIC=false", "2");
  CHECK(std::abs(loss("OMP_THREAD_LIMIT=1", "1") - expected) < 1e-3);
  CHECK(std::abs(loss("OMP_DYNAMIC=true", "2") - expected) < 1e-6);
  CHECK(std::abs(loss("OMP_MAX_ACTIVE_LEVELS=0", "2") - expected) < 1e-6);
}

TEST_CASE("a link gives the model what the data knows") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", R"(
trainer: {max_epochs: 1, num_threads: 1}
model: MlpClassifier
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 0, num_test: 0, num_classes: 5, shape: [6]}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
link: {model.in_features: data.num_features, model.num_classes: data.num_classes}
)");
  const Finished finished = trainer({"fit", "-c", "c.yaml"}, {.folder = folder.path()});
  INFO(finished.err);
  REQUIRE(finished.exit_code == 0);
  const std::string saved = read_text(folder / "fulgur_logs/version_0/config.yaml");
  CHECK(says(saved, "in_features: 6"));
  CHECK(trainer({"fit", "-c", "fulgur_logs/version_0/config.yaml"}, {.folder = folder.path()}).exit_code == 0);

  const Finished conflict = trainer({"fit", "-c", "c.yaml", "--model.num_classes", "4"}, {.folder = folder.path()});
  CHECK(conflict.exit_code == 2);
  CHECK(says(conflict.err, "the config sets '4', but the link to data.num_classes gives '5'"));
}

TEST_CASE("config runs nothing and leaves nothing") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const std::vector<std::string> open{"-c", "c.yaml", "--trainer.num_threads", "auto", "--trainer.accelerator", "auto"};
  const auto shown = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), open.begin(), open.end());
    const Finished finished = trainer(arguments, {.folder = folder.path(), .environment = {"OMP_NUM_THREADS=3"}});
    CHECK(finished.exit_code == 0);
    return finished.out;
  };
  // As written, and with each auto of the trainer decided.
  CHECK(says(shown({"fit", "--print_config"}), "num_threads: auto"));
  CHECK(says(shown({"config"}), "num_threads: 3"));
  CHECK_FALSE(says(shown({"config"}), "accelerator: auto"));
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a report that could not be written is refused before the run") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  for (const char* path : {"missing/r.json", "."}) {
    const Finished finished = trainer({"fit", "-c", "c.yaml", "--report", path}, {.folder = folder.path()});
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, "--report"));
  }
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a fit without an optimizer says what to write") {
  const TemporaryFolder folder;
  const Finished finished =
      trainer({"fit", "--model", "MlpClassifier", "--data", "SyntheticDataModule"}, {.folder = folder.path()});
  CHECK(finished.exit_code == 2);
  CHECK(says(finished.err, "optimizer"));
}

TEST_CASE("one of several processes of a launcher, without a strategy for them, is a warning") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto fit = [&](std::vector<std::string> environment, const char* strategy = "single_device") {
    return trainer({"fit", "-c", "c.yaml", "--trainer.strategy", strategy},
                   {.folder = folder.path(), .environment = std::move(environment)});
  };
  const Finished finished = fit({"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"});
  INFO(finished.err);
  CHECK(finished.exit_code == 0);
  CHECK(says(finished.err,
             "warning: this process is rank 1 of 2 (RANK and WORLD_SIZE), but strategy single_device is one "
             "process: each process runs by itself"));
  CHECK(says(finished.err, "set trainer.strategy: ddp"));
  CHECK(says(finished.err, "[strategies.single_process]"));
  // srun and torchrun are named.
  CHECK(says(fit({"TORCHELASTIC_RUN_ID=a", "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                  "GROUP_RANK=0", "GROUP_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"})
                 .err,
             "rank 0 of 2 (torchrun)"));
  // A batch script of Slurm outside srun, incomplete variables, and a single process are no reason.
  for (const std::vector<std::string>& alone :
       {std::vector<std::string>{"SLURM_JOB_ID=1", "SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_NAME=job"},
        {"WORLD_SIZE=2"},
        {"RANK=0", "WORLD_SIZE=1"},
        {}}) {
    const Finished one = fit(alone);
    CHECK(one.exit_code == 0);
    CHECK_FALSE(says(one.err, "strategies.single_process"));
  }
  CHECK_FALSE(says(fit({"RANK=0", "WORLD_SIZE=1"}, "ddp").err, "strategies.single_process"));
}

TEST_CASE("data that is missing exits 3 and says where it was looked for") {
  const TemporaryFolder folder;
  const Finished finished = trainer({"fit", "--model", "MlpClassifier", "--data", "MnistDataModule", "--data.data_dir",
                                     "nowhere", "--optimizer", "SGD"},
                                    {.folder = folder.path()});
  INFO(finished.err);
  CHECK(finished.exit_code == 3);
  CHECK(says(finished.err, "nowhere"));
}

TEST_CASE("F37: data that is damaged exits 3 and is named with what is wrong") {
  const TemporaryFolder folder;
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    write_text(folder / name, "version https://git-lfs.github.com/spec/v1\n");
  const Finished finished = trainer(
      {"fit", "--model", "MlpClassifier", "--data", "MnistDataModule", "--data.data_dir", ".", "--optimizer", "SGD"},
      {.folder = folder.path()});
  INFO(finished.err);
  CHECK(finished.exit_code == 3);
  CHECK(says(finished.err, "train-images-idx3-ubyte"));
  CHECK(says(finished.err, "begins with 00 00 08 03"));
}

TEST_CASE("a checkpoint that is missing exits 4") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const Finished finished = trainer({"test", "-c", "c.yaml", "--ckpt_path", "nowhere.ckpt"}, {.folder = folder.path()});
  INFO(finished.err);
  CHECK(finished.exit_code == 4);
  CHECK(says(finished.err, "nowhere.ckpt"));
}

TEST_CASE("F35 a run whose stdout is not read continues to its end") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const Finished finished =
      trainer({"fit", "-c", "c.yaml", "--report", "r.json"}, {.folder = folder.path(), .broken_pipe = true});
  CHECK(finished.exit_code == 0);
  CHECK(std::filesystem::exists(folder / "r.json"));
}

TEST_CASE("F48 too little memory: exit code 1, with the step, the batch's shapes and the requested bytes") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  // Room for the weights (0.6 GB) and the program, none for gradients of that size.
  const Finished finished = trainer(
      {"fit", "--config", "c.yaml", "--model.hidden", "[12000, 12000]", "--trainer.enable_model_summary", "false"},
      {.folder = folder.path(), .address_space_mb = 1400});
  INFO(finished.err);
  CHECK(finished.exit_code == 1);
  CHECK(says(finished.err, "the run failed in train, epoch 0, batch 0, step 0, "));
  CHECK(says(finished.err, "can't allocate memory"));
  CHECK_FALSE(says(finished.err, "frame #"));
  CHECK(std::filesystem::exists(folder / "fulgur_logs/version_0/config.yaml"));
}

TEST_CASE("fit --profile measures a few steps, says what bounds the run and leaves nothing behind") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--config", "c.yaml"});
    return trainer(arguments, {.folder = folder.path()});
  };
  const Finished measured = run({"fit", "--profile", "3"});
  INFO(measured.err);
  CHECK(measured.exit_code == 0);
  CHECK(says(measured.err, "profile of 3 training batches"));
  CHECK(says(measured.err, "bound by: "));
  CHECK(says(measured.err, "to try:"));
  CHECK(says(measured.err, "training_step"));
  CHECK(files_in(folder.path()) == 1);  // the config
  CHECK(run({"fit", "--profile", "0"}).exit_code == 2);
  CHECK(run({"fit", "--profile", "many"}).exit_code == 2);
  CHECK(says(run({"validate", "--profile", "3"}).err, "--profile is for fit"));
  const Finished both = run({"fit", "--profile", "3", "--resume"});
  CHECK(both.exit_code == 2);
  CHECK(says(both.err, "contradict each other"));
  CHECK(files_in(folder.path()) == 1);
  CHECK(says(trainer({"fit", "--help"}).out, "--profile STEPS"));
}

TEST_CASE("a profiler is chosen by its name or with its options, and list and describe know it") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const Finished fit =
      trainer({"fit", "--config", "c.yaml", "--trainer.profiler", "simple", "--trainer.profiler.skip_first", "0"},
              {.folder = folder.path()});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  CHECK(says(fit.err, "profile of fit: time of each action"));
  CHECK(Json::parse(read_text(folder / "fulgur_logs/version_0/profile.json"))["steps"] == 1);
  const Finished listed = trainer({"list", "profiler"});
  for (const char* name : {"simple", "kineto", "nvtx", "itt", "memory", "none"}) CHECK(says(listed.out, name));
  CHECK(says(trainer({"describe", "kineto"}).out, "warmup"));
}

}  // namespace verbs_test
