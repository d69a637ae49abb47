// Signals to the program while it trains.
#include "fulgur/checkpoint/checkpoint_folder.h"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "process.h"

namespace signals_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

// Long enough that each signal comes while it trains.
constexpr const char* kConfig = R"(
seed_everything: 7
trainer: {max_steps: 1000000, num_threads: 1, enable_progress_bar: false, enable_model_summary: false, logger: false, callbacks: []}
model: {class_path: MlpClassifier, init_args: {in_features: 16, num_classes: 4, hidden: [32]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 1000, num_val: 64, num_test: 64, num_classes: 4, shape: [16], batch_size: 8}}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
)";

struct Training {
  TemporaryFolder folder;
  std::optional<Running> run;

  explicit Training(const std::vector<std::string>& environment = {}) {
    write_text(folder / "c.yaml", kConfig);
    run.emplace(std::vector<std::string>{"fit", "-c", "c.yaml", "--resume"},
                Start{.folder = folder.path(), .environment = environment});
    REQUIRE(run->wait_until([&] { return fs::exists(checkpoints() / "last.ckpt"); }));
  }
  fs::path checkpoints() const { return folder / "fulgur_logs" / "version_0" / "checkpoints"; }
  // Every checkpoint verifies, nothing half-written is left, and the run can continue.
  void check_sound() const {
    const auto all = fulgur::list_checkpoints(checkpoints());
    CHECK_FALSE(all.empty());
    for (const auto& summary : all) CHECK(fulgur::verify_checkpoint(summary.path).ok());
    const Finished more =
        trainer({"fit", "-c", "c.yaml", "--resume", "--trainer.max_steps", std::to_string(all.front().global_step + 1)},
                {.folder = folder.path()});
    INFO(more.err);
    CHECK(more.exit_code == 0);
    CHECK(fs::exists(checkpoints().parent_path() / "finished.json"));
    CHECK_FALSE(fs::exists(folder / "fulgur_logs" / "version_1"));
  }
};

}  // namespace

TEST_CASE("F32 SIGTERM: a checkpoint at the next step, exit code 75") {
  Training training;
  training.run->signal(SIGTERM);
  const Finished end = training.run->wait();
  INFO(end.err);
  CHECK(end.exit_code == 75);
  CHECK(says(end.err, "stopped: signal 15"));
  CHECK(says(end.err, " · continue with --resume\n"));
  training.check_sound();
}

TEST_CASE("F33 SIGINT once is graceful; twice or twenty times is at once, and no file is torn") {
  SECTION("once") {
    Training training;
    training.run->signal(SIGINT);
    CHECK(training.run->wait().exit_code == 130);
    training.check_sound();
  }
  SECTION("twice") {
    Training training;
    training.run->signal(SIGINT);
    training.run->signal(SIGINT);
    CHECK(training.run->wait().exit_code == 130);
    training.check_sound();
  }
  SECTION("twenty") {
    Training training;
    for (int i = 0; i < 20; ++i) {
      training.run->signal(SIGINT);
      ::usleep(1000);
    }
    CHECK(training.run->wait().exit_code == 130);
    training.check_sound();
  }
}

TEST_CASE("F34 SIGUSR1: saves, and training continues; under Slurm the job was requeued, once and without a shell") {
  const TemporaryFolder bin;
  write_text(bin / "scontrol", "#!/bin/sh\necho \"$@\" >> \"$FULGUR_TEST_CALLS\"\n");
  fs::permissions(bin / "scontrol", fs::perms::owner_all);
  const auto environment = [&](const std::string& job) {
    return std::vector<std::string>{"PATH=" + bin.path().string() + ":/usr/bin:/bin", "SLURM_JOB_ID=" + job,
                                    "FULGUR_TEST_CALLS=" + (bin / "calls").string()};
  };
  SECTION("a job") {
    Training training(environment("1234_5"));
    for (int count = 1; count <= 2; ++count) {
      training.run->signal(SIGUSR1);
      const auto saves = [&] {
        const std::string err = training.run->err();
        size_t found = 0;
        for (size_t at = err.find("SIGUSR1: saved"); at != std::string::npos; at = err.find("SIGUSR1: saved", at + 1))
          ++found;
        return found;
      };
      CHECK(training.run->wait_until([&] { return saves() == static_cast<size_t>(count); }));
    }
    CHECK_FALSE(training.run->has_ended());
    training.run->signal(SIGTERM);
    CHECK(training.run->wait().exit_code == 75);
    CHECK(read_text(bin / "calls") == "requeue 1234_5\n");
    training.check_sound();
  }
  SECTION("an invalid job id") {
    Training training(environment("1; touch x"));
    training.run->signal(SIGUSR1);
    CHECK(training.run->wait_until([&] { return says(training.run->err(), "SIGUSR1: saved"); }));
    training.run->signal(SIGTERM);
    CHECK(training.run->wait().exit_code == 75);
    CHECK_FALSE(fs::exists(bin / "calls"));
  }
}

TEST_CASE("F34 SIGUSR1 while the ranks start, or after their fit, ends no process") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  Running run({"fit", "-c", "c.yaml", "--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy",
               "ddp", "--trainer.max_steps", "20"},
              Start{.folder = folder.path()});
  // The launcher has read its command line once it has children.
  const std::string children =
      "/proc/" + std::to_string(run.pid()) + "/task/" + std::to_string(run.pid()) + "/children";
  REQUIRE(run.wait_until([&] { return fs::exists(children) && !read_text(children).empty(); }));
  for (int i = 0; i < 1000 && !run.has_ended(); ++i) {
    run.signal(SIGUSR1);
    ::usleep(20000);
  }
  const Finished end = run.wait();
  INFO(end.err);
  CHECK(end.exit_code == 0);
}

TEST_CASE("F35 a terminal that closes ends a run as SIGTERM does") {
  Training training;
  training.run->signal(SIGHUP);
  CHECK(training.run->wait().exit_code == 75);
  training.check_sound();
}

}  // namespace signals_test
