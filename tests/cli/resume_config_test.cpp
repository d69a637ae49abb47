// F16: configs that differ from that of the checkpoint a fit continues from, and the options that say how to load.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <csignal>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/run_lock.h"
#include "process.h"

namespace resume_config_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 7
trainer: {max_steps: 12, num_threads: 1, enable_progress_bar: false, enable_model_summary: false, log_every_n_steps: 1}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4], batch_size: 4}}
optimizer: {class_path: SGD, init_args: {lr: 0.1, momentum: 0.5}}
)";

struct Stopped {
  TemporaryFolder folder;
  std::string out;  ///< what the fit printed
  Stopped() {
    write_text(folder / "c.yaml", kConfig);
    const Finished end = trainer({"fit", "-c", "c.yaml"}, {.folder = folder.path()});
    REQUIRE(end.exit_code == 0);
    out = end.out;
  }
  Finished resume(std::vector<std::string> more) const {
    more.insert(more.begin(), {"fit", "-c", "c.yaml", "--resume", "--trainer.max_steps", "20"});
    return trainer(more, {.folder = folder.path()});
  }
  std::string config() const { return read_text(folder / "fulgur_logs/version_0/config.yaml"); }
};

}  // namespace

TEST_CASE(
    "F16 optimizer, schedule, batch size and seed keep the checkpoint's values, limits are the config's; each "
    "difference is reported") {
  const Stopped run;
  const Finished end = run.resume({"--optimizer.lr", "0.2", "--data.batch_size", "8", "--seed_everything", "9",
                                   "--trainer.log_every_n_steps", "5"});
  INFO(end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.err,
             "resume: optimizer.init_args.lr: 0.1 in the checkpoint, 0.2 in the config; the run continues with 0.1"));
  CHECK(says(end.err,
             "resume: data.init_args.batch_size: 4 in the checkpoint, 8 in the config; the run continues with 4"));
  CHECK(says(end.err, "resume: seed_everything: 7 in the checkpoint, 9 in the config; the run continues with 7\n"));
  CHECK(says(end.err, "warning: resume: the run continues with the checkpoint's values of "));
  CHECK(says(end.err, "use --allow-config-change"));
  CHECK(says(end.err, "[trainer.resume_config]"));
  CHECK(says(end.err,
             "resume: trainer.log_every_n_steps: 1 in the checkpoint, 5 in the config; the run continues with 5"));
  CHECK(says(end.err, "resume: trainer.max_steps: 12 in the checkpoint, 20 in the config; the run continues with 20"));
  CHECK(says(run.config(), "lr: 0.1"));
  CHECK(says(run.config(), "batch_size: 4"));
  CHECK(says(end.err, "20 steps"));
}

TEST_CASE("F16 what the run has decided for auto is no difference") {
  const Stopped run;
  const Finished end =
      trainer({"fit", "-c", "fulgur_logs/version_0/config.yaml", "--resume", "--trainer.max_steps", "20"},
              {.folder = run.folder.path()});
  INFO(end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.err, "resume: trainer.max_steps: 12 in the checkpoint, 20 in the config; the run continues with 20"));
  CHECK_FALSE(says(end.err, ": auto in the checkpoint"));
}

TEST_CASE("F16 auto keeps how the run computed on the CPU, which is no difference") {
  const Stopped run;
  const Finished end = run.resume({"--trainer.num_threads", "auto", "--trainer.cpu_matmul", "auto"});
  INFO(end.err);
  REQUIRE(end.exit_code == 0);
  CHECK_FALSE(says(end.err, "resume: trainer.num_threads"));
  CHECK_FALSE(says(end.err, "resume: trainer.cpu_matmul"));
  CHECK(says(run.config(), "num_threads: 1"));
  CHECK_FALSE(says(run.config(), "cpu_matmul: auto"));
}

TEST_CASE("a seed that was drawn is that of the run in every process that resumes it") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto fit = [&](const char* max_steps) {
    const Finished end =
        trainer({"fit", "-c", "c.yaml", "--seed_everything", "true", "--resume", "--trainer.max_steps", max_steps},
                {.folder = folder.path()});
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    CHECK_FALSE(says(end.err, "trainer.resume_config"));
    CHECK_FALSE(says(end.err, "data.order_changed"));
    const std::string config = read_text(folder / "fulgur_logs/version_0/config.yaml");
    return config.substr(config.find("seed_everything"),
                         config.find('\n', config.find("seed_everything")) - config.find("seed_everything"));
  };
  // Inside an epoch of 16 steps.
  const std::string seed = fit("5");
  CHECK(seed.starts_with("seed_everything: "));
  CHECK(fit("8") == seed);
  CHECK(fit("11") == seed);
}

TEST_CASE("F16 with --allow-config-change the config wins") {
  const Stopped run;
  const Finished end = run.resume({"--optimizer.lr", "0.2", "--data.batch_size", "8", "--allow-config-change",
                                   "--trainer.callbacks+=LearningRateMonitor"});
  INFO(end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.err, "optimizer.init_args.lr: 0.1 in the checkpoint, 0.2 in the config; the run continues with 0.2"));
  CHECK_FALSE(says(end.err, "trainer.resume_config"));
  CHECK(says(end.err,
             "the epoch resumes at batch 6, after as many samples as at batch 12 with the checkpoint's 1 process"));
  CHECK(says(run.config(), "lr: 0.2"));
  // The rate that was stepped with, not only the one that was written down.
  const std::string rows = read_text(run.folder / "fulgur_logs/version_0/metrics.csv");
  CHECK(says(rows, "0.2"));
}

TEST_CASE("F16 differences inside lists are shown item by item, components of another class by their names") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto fit = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"fit", "-c", "c.yaml", "--trainer.callbacks+=LearningRateMonitor"});
    return trainer(more, {.folder = folder.path()});
  };
  REQUIRE(fit({"--lr_scheduler", "ExponentialLR"}).exit_code == 0);
  const Finished end = fit({"--resume", "--trainer.max_steps", "20", "--trainer.callbacks.log_momentum", "true",
                            "--trainer.callbacks+=Timer", "--optimizer", "AdamW", "--lr_scheduler", "StepLR"});
  INFO(end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.err,
             "resume: trainer.callbacks.0.init_args.log_momentum: false in the checkpoint, true in the config; the run "
             "continues with true\n"));
  CHECK(says(end.err,
             "resume: trainer.callbacks.1: not set in the checkpoint, Timer in the config; the run continues "
             "with Timer\n"));
  CHECK(says(end.err, "resume: optimizer: SGD in the checkpoint, AdamW in the config; the run continues with SGD\n"));
  CHECK(says(end.err,
             "resume: lr_scheduler: ExponentialLR in the checkpoint, StepLR in the config; the run continues with "
             "ExponentialLR\n"));
}

TEST_CASE("F16 another model is refused with exit code 4, even if only an option differs") {
  const Stopped run;
  const Finished wider = run.resume({"--model.hidden", "[16]", "--model.dropout", "0.5"});
  CHECK(wider.exit_code == 4);
  CHECK(says(wider.err, "model.init_args.hidden: "));
  CHECK(says(wider.err, "model.init_args.dropout: "));
  CHECK(says(wider.err, "--allow-config-change"));
  // Options that change no shape may change, shapes may not.
  CHECK(run.resume({"--model.dropout", "0.5", "--allow-config-change"}).exit_code == 0);
  CHECK(run.resume({"--model.hidden", "[16]", "--allow-config-change", "--trainer.max_steps", "30"}).exit_code == 4);
}

TEST_CASE("F16 an option that is new in the module since the checkpoint: refused, with the option that continues") {
  const Stopped run;
  // The checkpoint of a module that did not have the option yet.
  CheckpointContent content = read_checkpoint(run.folder / "fulgur_logs/version_0/checkpoints/last.ckpt");
  std::string written = content.state.at("config_written").as_string();
  const size_t option = written.find("    dropout:");
  REQUIRE(option != std::string::npos);
  written.erase(option, written.find('\n', option) + 1 - option);
  content.state["config_written"] = written;
  const std::string old = write_checkpoint(run.folder / "old.ckpt", content).string();
  const auto fit = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"fit", "-c", "c.yaml", "--ckpt_path", old, "--trainer.max_steps", "14"});
    return trainer(more, {.folder = run.folder.path()});
  };
  const Finished refused = fit({});
  INFO(refused.err);
  CHECK(refused.exit_code == 4);
  CHECK(says(refused.err, "model.init_args.dropout: not set in the checkpoint, 0.0 in the config"));
  CHECK(says(refused.err,
             "An option that is not set in the checkpoint may be new in the module: continue with "
             "--allow-config-change. The config's values then apply to all options"));
  const Finished continued = fit({"--allow-config-change"});
  INFO(continued.err);
  CHECK(continued.exit_code == 0);
  CHECK(says(continued.err, "14 steps"));
}

TEST_CASE("a fit with --resume continues all of a run, otherwise starts it from the config's ckpt_path") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  write_text(folder / "fine.yaml",
             "ckpt_path: base/fulgur_logs/version_0/checkpoints/last.ckpt\n"
             "load: {weights_only: true, strict: false}\n"
             "trainer: {default_root_dir: fine, max_steps: 5}\n");
  const auto fit = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"fit", "-c", "c.yaml"});
    Finished end = trainer(arguments, {.folder = folder.path()});
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    return end.err + end.out;
  };
  fit({"--trainer.default_root_dir", "base"});
  const std::string started = fit({"-c", "fine.yaml", "--resume"});
  CHECK(says(started, "there is no run to resume; this one starts from ckpt_path: base/"));
  CHECK(says(started, ", 5 steps"));
  const auto run = folder / "fine/fulgur_logs/version_0";
  const auto first = fulgur::read_checkpoint(run / "checkpoints/last.ckpt");
  CHECK(first.state.at("progress").at("global_step").as_int() == 5);
  const std::string resumed = fit({"-c", "fine.yaml", "--resume", "--trainer.max_steps", "9"});
  CHECK_FALSE(says(resumed, "there is no run to resume"));
  // The saved config describes the whole run, which started from the other's weights.
  const std::string saved = read_text(run / "config.yaml");
  CHECK(says(saved, "ckpt_path: base/fulgur_logs/version_0/checkpoints/last.ckpt"));
  CHECK(says(saved, "weights_only: true"));
  CHECK(says(resumed, ", 9 steps"));
  CHECK_FALSE(std::filesystem::exists(folder / "fine/fulgur_logs/version_1"));
  CHECK(says(fit({"-c", "fine.yaml", "--resume", "--trainer.max_steps", "9"}), "nothing to resume"));
  // An evaluation has a newer folder, and the run is still finished.
  REQUIRE(trainer({"test", "-c", "c.yaml", "-c", "fine.yaml"}, {.folder = folder.path()}).exit_code == 0);
  REQUIRE(std::filesystem::exists(folder / "fine/fulgur_logs/version_1"));
  CHECK(says(fit({"-c", "fine.yaml", "--resume", "--trainer.max_steps", "9"}), "nothing to resume"));
  CHECK_FALSE(std::filesystem::exists(folder / "fine/fulgur_logs/version_2"));
}

TEST_CASE("with ckpt_path auto in the config a run continues completely, too, whatever load says") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", std::string(kConfig) + "ckpt_path: auto\nload: {weights_only: true}\n");
  for (const char* steps : {"5", "9"}) {
    const Finished end = trainer({"fit", "-c", "c.yaml", "--trainer.max_steps", steps}, {.folder = folder.path()});
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    CHECK(says(end.err, std::string(", ") + steps + " steps"));
  }
  CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_1"));
}

TEST_CASE(
    "a run from ckpt_path that ended before its first checkpoint begins again in the folder that its logger names") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  write_text(
      folder / "fine.yaml",
      "ckpt_path: base/fulgur_logs/version_0/checkpoints/last.ckpt\n"
      "load: {weights_only: true}\n"
      "trainer: {default_root_dir: fine, max_steps: 5, logger: {class_path: CsvLogger, init_args: {version: 7}}}\n");
  REQUIRE(trainer({"fit", "-c", "c.yaml", "--trainer.default_root_dir", "base"}, {.folder = folder.path()}).exit_code ==
          0);
  const fs::path run = folder / "fine/fulgur_logs/version_7";
  fs::create_directories(run / "checkpoints");
  const Finished resumed = trainer({"fit", "-c", "c.yaml", "-c", "fine.yaml", "--resume"}, {.folder = folder.path()});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(says(resumed.err, ", 5 steps"));
  CHECK(fs::exists(run / "checkpoints/last.ckpt"));
  // Without --resume a folder that exists is refused.
  CHECK(trainer({"fit", "-c", "c.yaml", "-c", "fine.yaml"}, {.folder = folder.path()}).exit_code == 2);
}

TEST_CASE("a path of a checkpoint means the same with a final slash, from another folder and by links") {
  const Stopped base;
  const fs::path run = base.folder / "fulgur_logs/version_0", checkpoints = run / "checkpoints";
  const std::string name = fulgur::link_target(checkpoints / "last.ckpt")->filename().string();
  fs::create_directory_symlink(checkpoints, base.folder / "all");
  fs::create_directory_symlink(checkpoints / name, base.folder / "one");
  const std::string config = (base.folder / "c.yaml").string(), root = base.folder.path().string();
  const auto fit = [&](const fs::path& from, const std::string& path, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"fit", "-c", config, "--trainer.default_root_dir", root, "--ckpt_path", path};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished end = trainer(arguments, {.folder = from});
    INFO(path << "\n" << end.err);
    CHECK(end.exit_code == 0);
    return end.err;
  };
  const std::string in_run = "fulgur_logs/version_0/checkpoints/" + name;
  const std::vector<std::pair<fs::path, std::string>> forms{{base.folder.path(), in_run},
                                                            {base.folder.path(), in_run + "/"},
                                                            {base.folder.path(), (checkpoints / name).string() + "/"},
                                                            {run, "checkpoints/" + name},
                                                            {checkpoints, name},
                                                            {base.folder.path(), "all/" + name},
                                                            {base.folder.path(), "one"}};
  int version = 0;
  // Another run begins with its weights, and the run of the checkpoint is not the one to resume.
  for (const auto& [from, path] : forms) {
    write_text(base.folder / "fine.yaml", "ckpt_path: " + path + "\nload: {weights_only: true}\n");
    const Finished end = trainer({"fit", "-c", config, "-c", (base.folder / "fine.yaml").string(), "--resume",
                                  "--trainer.default_root_dir", root, "--trainer.max_steps", "2"},
                                 {.folder = from});
    INFO(path << "\n" << end.err);
    CHECK(end.exit_code == 0);
    CHECK(says(end.err, "there is no run to resume; this one starts from ckpt_path"));
    CHECK(says(end.err, "version_" + std::to_string(++version)));
    fs::remove_all(base.folder / "fulgur_logs" / ("version_" + std::to_string(version--)));
  }
  // The run continues in its folder, and keeps the checkpoint.
  int steps = 12;
  for (const auto& [from, path] : forms) {
    CHECK(says(fit(from, path, {"--trainer.max_steps", std::to_string(++steps)}), "fulgur_logs/version_0"));
    CHECK(fs::exists(checkpoints / name));
  }
  CHECK_FALSE(fs::exists(base.folder / "fulgur_logs/version_1"));
}

TEST_CASE("a checkpoint in another folder than its run's is one of the run, which is the base of a fine-tuning") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  REQUIRE(trainer({"fit", "-c", "c.yaml", "--trainer.callbacks",
                   "[{class_path: ModelCheckpoint, init_args: {dirpath: kept}}]"},
                  {.folder = folder.path()})
              .exit_code == 0);
  const fs::path checkpoint = *fulgur::link_target(folder / "fulgur_logs/version_0/checkpoints/last.ckpt");
  REQUIRE(checkpoint.parent_path().filename() == "kept");
  write_text(folder / "fine.yaml", "ckpt_path: " + checkpoint.string() + "\nload: {weights_only: true}\n");
  const Finished end = trainer({"fit", "-c", "c.yaml", "-c", "fine.yaml", "--resume", "--trainer.max_steps", "2"},
                               {.folder = folder.path()});
  INFO(end.err);
  CHECK(end.exit_code == 0);
  CHECK(says(end.err, "there is no run to resume; this one starts from ckpt_path"));
  CHECK(fs::exists(folder / "fulgur_logs/version_1"));
  CHECK(fs::exists(checkpoint));
}

TEST_CASE("a checkpoint whose path was given stays, also if nothing was saved before the run continues") {
  const Stopped base;
  const fs::path checkpoints = base.folder / "fulgur_logs/version_0/checkpoints";
  const std::string name = fulgur::link_target(checkpoints / "last.ckpt")->filename().string();
  const auto fit = [&](const std::string& path, const char* steps) {
    return trainer({"fit", "-c", "c.yaml", "--ckpt_path", path, "--trainer.max_steps", steps},
                   {.folder = base.folder.path()})
        .exit_code;
  };
  REQUIRE(fit((checkpoints / name).string(), "12") == 0);  // there is nothing to train
  const auto tested = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"test", "-c", "fulgur_logs/version_0/config.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return trainer(arguments, {.folder = base.folder.path()}).err;
  };
  CHECK(says(tested({}), "[cli.start_evaluated]"));
  CHECK_FALSE(says(tested({"--ckpt_path", "last"}), "start_evaluated"));
  const std::string unfit = tested({"--ckpt_path", "last", "--model.hidden", "[9]"});
  CHECK(says(unfit, "the checkpoint does not fit the module"));
  CHECK(says(unfit, name));
  REQUIRE(fit("last", "14") == 0);
  CHECK(fs::exists(checkpoints / name));
}

TEST_CASE("fast_dev_run tries the loops from the start with a checkpoint's weights") {
  const Stopped run;
  const Finished end = trainer({"fit", "-c", "c.yaml", "--ckpt_path", "last", "--trainer.fast_dev_run", "2"},
                               {.folder = run.folder.path()});
  INFO(end.err);
  CHECK(end.exit_code == 0);
  CHECK(says(end.err + end.out, "the loops begin at step 0"));
  CHECK(says(end.err + end.out, ", 2 steps"));
  // The run has finished, and is tried all the same.
  const Finished tried =
      trainer({"fit", "-c", "c.yaml", "--resume", "--trainer.fast_dev_run", "2"}, {.folder = run.folder.path()});
  INFO(tried.err);
  CHECK(tried.exit_code == 0);
  CHECK(says(tried.err + tried.out, ", 2 steps"));
}

TEST_CASE("the run from whose checkpoint the config starts another is its base, not the run to resume") {
  const Stopped base;
  write_text(base.folder / "fine.yaml",
             "ckpt_path: fulgur_logs/version_0/checkpoints/last.ckpt\n"
             "load: {weights_only: true}\n");
  const auto fit = [&](const char* steps) {
    Finished end = trainer({"fit", "-c", "c.yaml", "-c", "fine.yaml", "--resume", "--trainer.max_steps", steps},
                           {.folder = base.folder.path()});
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    return end.err + end.out;
  };
  CHECK(says(fit("5"), "there is no run to resume; this one starts from ckpt_path"));
  const std::string resumed = fit("9");
  CHECK_FALSE(says(resumed, "there is no run to resume"));
  CHECK(says(resumed, ", 9 steps"));
  const auto steps_of = [&](const char* version) {
    return fulgur::read_checkpoint(base.folder / "fulgur_logs" / version / "checkpoints/last.ckpt")
        .state.at("progress")
        .at("global_step")
        .as_int();
  };
  CHECK(steps_of("version_0") == 12);
  CHECK(steps_of("version_1") == 9);
  CHECK_FALSE(fs::exists(base.folder / "fulgur_logs/version_2"));
}

TEST_CASE("a run from `best` names the checkpoint that this meant: its saved config starts again from it") {
  const Stopped base;
  write_text(base.folder / "fine.yaml", "ckpt_path: best\nload: {weights_only: true}\ntrainer: {max_steps: 5}\n");
  const auto fit = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "fit");
    Finished end = trainer(arguments, {.folder = base.folder.path()});
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    return end.err + end.out;
  };
  const auto weights_of = [&](const char* version) {
    return read_text(base.folder / "fulgur_logs" / version / "checkpoints/last.ckpt/model.safetensors");
  };
  CHECK(says(fit({"-c", "c.yaml", "-c", "fine.yaml", "--resume"}), ", 5 steps"));
  const std::string saved = read_text(base.folder / "fulgur_logs/version_1/config.yaml");
  CHECK(says(saved, "ckpt_path: fulgur_logs/version_0/checkpoints/epoch="));
  fit({"--config", "fulgur_logs/version_1/config.yaml"});
  CHECK(weights_of("version_2") == weights_of("version_1"));
  // Resumed in between, the config still says so.
  fs::remove_all(base.folder / "fulgur_logs/version_2");
  CHECK(says(fit({"-c", "c.yaml", "-c", "fine.yaml", "--resume", "--trainer.max_steps", "7"}), ", 7 steps"));
  CHECK(says(read_text(base.folder / "fulgur_logs/version_1/config.yaml"),
             "ckpt_path: fulgur_logs/version_0/checkpoints/epoch="));
}

TEST_CASE("a checkpoint that is refused leaves its run as it was") {
  const Stopped run;
  const fs::path folder = run.folder / "fulgur_logs/version_0";
  const auto files = [&] {
    std::string all;
    for (const char* name : {"config.yaml", "metrics.csv", "metrics.jsonl", "finished.json"})
      all += read_text(folder / name);
    return all;
  };
  const std::string before = files();
  // Another optimizer; fewer samples than were read.
  const auto more = GENERATE(std::vector<std::string>{"--optimizer", "AdamW", "--allow-config-change"},
                             std::vector<std::string>{"--data.num_train", "8"});
  std::vector<std::string> arguments{"fit", "-c", "c.yaml", "--ckpt_path", "last", "--trainer.max_steps", "20"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished refused = trainer(arguments, {.folder = run.folder.path()});
  INFO(refused.err);
  CHECK(refused.exit_code != 0);
  CHECK(files() == before);
}

TEST_CASE("a fit that continues one that failed compares its config with it, as --resume does") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  write_text(folder / "crash.yaml",
             "trainer: {callbacks: [{class_path: OnExceptionCheckpoint, init_args: {dirpath: crash}}]}\n");
  Running first({"fit", "-c", "c.yaml", "-c", "crash.yaml", "--trainer.max_steps", "100000000"},
                {.folder = folder.path()});
  const fs::path rows = folder / "fulgur_logs/version_0/metrics.csv";
  REQUIRE(first.wait_until([&] { return fs::exists(rows) && says(read_text(rows), "\n20,"); }));
  first.signal(SIGTERM);
  CHECK(first.wait().exit_code == 75);
  const Finished end = trainer({"fit", "-c", "c.yaml", "-c", "crash.yaml", "--trainer.max_steps", "200000",
                                "--optimizer.lr", "0.5", "--trainer.fast_dev_run", "true"},
                               {.folder = folder.path()});
  INFO(end.err);
  CHECK(end.exit_code == 0);
  CHECK(says(end.err,
             "resume: optimizer.init_args.lr: 0.1 in the checkpoint, 0.5 in the config; the run continues with 0.1"));
  const Finished other =
      trainer({"fit", "-c", "c.yaml", "-c", "crash.yaml", "--model.hidden", "[4]"}, {.folder = folder.path()});
  CHECK(other.exit_code == 4);
  CHECK(says(other.err, "different model"));
}

TEST_CASE(
    "a fit from a checkpoint, with another default_root_dir, is a new run that leaves the checkpoint's as it was") {
  const Stopped run;
  const fs::path logs = run.folder / "fulgur_logs", last = logs / "version_0/checkpoints/last.ckpt";
  const auto fit = [&](std::vector<std::string> more, const fs::path& at = {}) {
    more.insert(more.begin(), "fit");
    Finished end = trainer(more, {.folder = at.empty() ? run.folder.path() : at});
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    return end.err + end.out;
  };
  const auto is_new = [](const std::string& output) { return says(output, "a new run continues from the checkpoint"); };
  const auto last_step = [](const fs::path& folder) {
    return fulgur::read_checkpoint(folder / "checkpoints/last.ckpt").state.at("progress").at("global_step").as_int();
  };
  const std::vector<std::string> steps{"--trainer.max_steps", "14"};
  const auto joined = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::string rows = read_text(logs / "version_0/metrics.csv");
  const std::vector<std::string> other{"--trainer.default_root_dir", "other"};
  const std::vector<std::string> from{"-c", "c.yaml", "--trainer.max_steps", "14", "--ckpt_path", last.string()};

  SECTION("the new run is resumed by a search") {
    {
      const RunLock active(logs / "version_0");
      CHECK(is_new(fit(joined(from, other))));
    }
    CHECK(last_step(run.folder / "other/fulgur_logs/version_0") == 14);
    const std::string resumed = fit(joined({"-c", "c.yaml", "--resume", "--trainer.max_steps", "16"}, other));
    CHECK_FALSE(is_new(resumed));
    CHECK(last_step(run.folder / "other/fulgur_logs/version_0") == 16);
    CHECK(last_step(logs / "version_0") == 12);
    CHECK(read_text(logs / "version_0/metrics.csv") == rows);
    CHECK_FALSE(fs::exists(logs / "version_1"));
  }
  SECTION("a root that is given wins over that of the run's own config") {
    const std::string own = (logs / "version_0/config.yaml").string();
    CHECK(is_new(fit(joined({"-c", own, "--ckpt_path", last.string()}, joined(steps, other)))));
    CHECK(is_new(fit(joined({"-c", own, "--ckpt_path", "last"}, joined(steps, other)))));
    CHECK(last_step(run.folder / "other/fulgur_logs/version_1") == 14);
    // A search finds the run, which continues.
    CHECK(says(fit(joined({"-c", own, "--resume"}, joined(steps, other))), "has no effect"));
    CHECK(last_step(logs / "version_0") == 14);
  }
  SECTION("a run that was moved or copied continues, in any order of the files") {
    write_text(run.folder / "more.yaml", "trainer: {max_steps: 14}\n");
    const fs::path moved = run.folder / "moved/version_0";
    fs::create_directory(run.folder / "moved");
    fs::copy(logs / "version_0", moved, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    CHECK_FALSE(is_new(fit({"-c", (moved / "config.yaml").string(), "-c", "more.yaml", "--ckpt_path",
                            (moved / "checkpoints/last.ckpt").string()})));
    CHECK(last_step(moved) == 14);
    CHECK(last_step(logs / "version_0") == 12);
  }
  SECTION("links to the root, and in it, are no other root") {
    fs::create_directory_symlink(run.folder.path(), run.folder / "link");
    CHECK_FALSE(is_new(fit(joined(from, {"--trainer.default_root_dir", (run.folder / "link").string()}))));
    CHECK(last_step(logs / "version_0") == 14);
    fs::create_directory(run.folder / "disk");
    fs::rename(logs, run.folder / "disk/fulgur_logs");
    fs::create_directory_symlink("disk/fulgur_logs", logs);
    for (const char* until : {"15", "16"})
      CHECK_FALSE(is_new(fit({"-c", "c.yaml", "--resume", "--trainer.default_root_dir", run.folder.path().string(),
                              "--trainer.max_steps", until})));
    CHECK(last_step(logs / "version_0") == 16);
    CHECK_FALSE(fs::exists(logs / "version_1"));
  }
  SECTION("from another working directory") {
    const TemporaryFolder elsewhere;
    const std::string config = (run.folder / "c.yaml").string();
    // Not a word about a root: it is that of the run.
    CHECK_FALSE(is_new(fit(joined({"-c", config, "--ckpt_path", last.string()}, steps), elsewhere.path())));
    CHECK(is_new(fit({"-c", config, "--ckpt_path", last.string(), "--trainer.max_steps", "16",
                      "--trainer.default_root_dir", elsewhere.path().string()},
                     elsewhere.path())));
    CHECK(last_step(elsewhere / "fulgur_logs/version_0") == 16);
    CHECK(last_step(logs / "version_0") == 14);
  }
}

TEST_CASE("resume is for fit, and excludes --ckpt_path") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const Finished test = trainer({"test", "-c", "c.yaml", "--resume"}, {.folder = folder.path()});
  CHECK(test.exit_code == 2);
  CHECK(says(test.err, "--resume is for fit"));
  CHECK(trainer({"fit", "-c", "c.yaml", "--resume", "--ckpt_path", "last"}, {.folder = folder.path()}).exit_code == 2);
  CHECK(trainer({"fit", "-c", "c.yaml", "--resume=yes"}, {.folder = folder.path()}).exit_code == 2);
  CHECK(trainer({"fit", "-c", "c.yaml", "--verify", "half"}, {.folder = folder.path()}).exit_code == 2);
}

TEST_CASE("a finished run says so and exits 0; a second process in its folder is refused") {
  const Stopped run;
  const Finished again = trainer({"fit", "-c", "c.yaml", "--resume"}, {.folder = run.folder.path()});
  CHECK(again.exit_code == 0);
  CHECK(says(again.err, "is finished (max_steps"));
  CHECK(again.out == run.out);  // the metrics that it ended with
  Running first({"fit", "-c", "c.yaml", "--resume", "--trainer.max_steps", "100000000"}, {.folder = run.folder.path()});
  REQUIRE(first.wait_until([&] { return says(first.err(), "checkpoint: "); }));
  const Finished second =
      trainer({"fit", "-c", "c.yaml", "--resume", "--trainer.max_steps", "100000000"}, {.folder = run.folder.path()});
  INFO(second.err);
  CHECK(second.exit_code == 2);
  CHECK(says(second.err, "pid"));
}

TEST_CASE("with another model, the folder of a finished run is an error that names what differs") {
  const Stopped run;
  const auto fit = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"fit", "-c", "c.yaml", "--resume"});
    return trainer(more, {.folder = run.folder.path()});
  };
  const auto refused = [&](const std::vector<std::string>& more, const std::vector<std::string>& texts) {
    const Finished end = fit(more);
    INFO(end.err);
    CHECK(end.exit_code == 2);
    CHECK(says(end.err, "is finished, so there is nothing to resume, and the config describes a different model:"));
    CHECK(says(end.err, "Omit --resume to train this config in a new run"));
    for (const std::string& text : texts) CHECK(says(end.err, text));
    CHECK(end.out.empty());
  };
  refused({"--model.hidden", "[16]", "--model.dropout", "0.5"},
          {"model.init_args.hidden: [8] in the checkpoint, [16] in the config",
           "model.init_args.dropout: 0.0 in the checkpoint, 0.5 in the config"});
  refused({"--model", "CnnClassifier"}, {"model: MlpClassifier in the checkpoint, CnnClassifier in the config"});
  // The same comparison as that of a resume: an option that changes no shape may be accepted, another class may not.
  CHECK(says(fit({"--model.dropout", "0.5", "--allow-config-change"}).err,
             "there is nothing to resume. Raise the limit"));
  refused({"--model", "CnnClassifier", "--allow-config-change"}, {"model: MlpClassifier in the checkpoint"});
  // What is no part of the model makes no other model, and a new run asks nothing.
  const Finished same = fit({"--optimizer.lr", "0.2"});
  CHECK(same.exit_code == 0);
  CHECK(same.out == run.out);
  CHECK(trainer({"fit", "-c", "c.yaml", "--model.hidden", "[16]"}, {.folder = run.folder.path()}).exit_code == 0);
  CHECK(fit({"--model.hidden", "[16]"}).exit_code == 0);
}

TEST_CASE("a finished run without checkpoints is compared by its config.yaml") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  const auto fit = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"fit", "-c", "c.yaml", "--resume", "--trainer.enable_checkpointing", "false"});
    return trainer(more, {.folder = folder.path()});
  };
  REQUIRE(fit({}).exit_code == 0);
  REQUIRE(fs::exists(folder / "fulgur_logs/version_0/finished.json"));
  const Finished same = fit({});
  INFO(same.err);
  CHECK(same.exit_code == 0);
  CHECK(says(same.err, "nothing to resume"));
  const Finished other = fit({"--model.hidden", "[16]"});
  INFO(other.err);
  CHECK(other.exit_code == 2);
  CHECK(says(other.err, "model.init_args.hidden: [8] in the checkpoint, [16] in the config"));
}

TEST_CASE("a fit from a checkpoint at the end of its run says that there is nothing to train") {
  const Stopped run;
  const auto fit = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"fit", "-c", "c.yaml", "--ckpt_path", "last"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished end = trainer(arguments, {.folder = run.folder.path()});
    INFO(end.err);
    CHECK(end.exit_code == 0);
    return end.err;
  };
  const std::string line =
      "there is nothing to train. Raise the limit, or begin a new run with its weights: --load.loops false";
  CHECK(says(fit({}), line));
  CHECK_FALSE(says(fit({"--load.loops", "false"}), "nothing to train"));
  CHECK_FALSE(says(fit({"--trainer.max_steps", "20"}), "nothing to train"));
}

TEST_CASE("verify needed tests a checkpoint whose optimizer is damaged; whole does not") {
  const Stopped run;
  const fs::path file = run.folder / "fulgur_logs/version_0/checkpoints/last.ckpt/optimizer.safetensors";
  std::string bytes = read_text(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(file, bytes);
  const Finished whole = trainer({"test", "-c", "c.yaml", "--ckpt_path", "last"}, {.folder = run.folder.path()});
  CHECK(whole.exit_code == 4);
  CHECK(says(whole.err, "optimizer.safetensors"));
  CHECK(says(whole.err, "--verify needed"));
  CHECK(trainer({"test", "-c", "c.yaml", "--ckpt_path", "last", "--verify", "needed"}, {.folder = run.folder.path()})
            .exit_code == 0);
}

}  // namespace resume_config_test
