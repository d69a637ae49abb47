#include "launchers.h"
#include "ranks.h"
#include "strategies/network_namespaces.h"

#include <unistd.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>

namespace launch_test {

using namespace fulgur::test;

namespace {

std::vector<std::string> launched(int processes, const std::vector<std::string>& more) {
  return probe("fit", processes, 12, more);
}

}  // namespace

TEST_CASE("launch: `devices: 4` starts four processes, which reach the weights of one") {
  const TemporaryFolder one, many;
  const Finished alone = trainer(probe("fit", 1, 12, {"--trainer.max_steps", "20"}),
                                 {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}});
  REQUIRE(alone.exit_code == 0);
  const Finished run = trainer(launched(4, {"--trainer.max_steps", "20"}),
                               {.folder = many.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.err, "rank 0 of 4 (launcher)"));
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(many.path())) < 1e-6);
}

TEST_CASE("F20, launched: a rank that is killed is named with its signal, and no process is left") {
  const TemporaryFolder folder;
  const Finished run =
      trainer(launched(2, {"--trainer.max_steps", "20", "--model.trouble", "kill"}), {.folder = folder.path()});
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "rank 1 of 2 was ended by signal 9"));
  CHECK(says(run.err, "lost another rank"));
}

TEST_CASE("F23, launched: rank 0, where the store is, is killed and named as any other") {
  const TemporaryFolder folder;
  const Finished run =
      trainer(launched(2, {"--trainer.max_steps", "20", "--model.trouble", "kill", "--model.trouble_rank", "0"}),
              {.folder = folder.path()});
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "rank 0 of 2 was ended by signal 9"));
  CHECK(processes_in(folder.path()) == 0);
}

TEST_CASE("F23, launched: a launcher that is killed leaves no rank running") {
  const TemporaryFolder folder;
  Running run(launched(2, {"--trainer.max_epochs", "-1", "--trainer.callbacks+=ProbeCallback",
                           "--trainer.callbacks.sleep_ms", "5"}),
              {.folder = folder.path()});
  REQUIRE(run.wait_until([&] { return processes_in(folder.path()) == 3 && says(run.err(), "run folder"); }));
  run.signal(SIGKILL);
  for (int i = 0; i < 100 && processes_in(folder.path()) > 0; ++i) ::usleep(100'000);
  CHECK(processes_in(folder.path()) == 0);
}

TEST_CASE("F22, launched: a rank that is stopped is ended with the others") {
  const TemporaryFolder folder;
  const Finished run = trainer(
      launched(2, {"--trainer.max_steps", "20", "--model.trouble", "stop", "--trainer.strategy.timeout_s", "3"}),
      {.folder = folder.path()});
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "timed out waiting for another rank"));
  CHECK(says(run.err, "did not answer"));
  // Its place is where it was when it last reported; how long ago that was is said to a tenth of a second.
  CHECK(std::regex_search(run.err, std::regex("rank 1: .* at step [0-9]+, reported [0-9]+\\.[0-9] s ago")));
  CHECK(says(run.err, "ranks report once a second"));
}

TEST_CASE("F28, launched: the rank that failed says why, and the exit code is its own") {
  const TemporaryFolder folder;
  const Finished run =
      trainer(launched(2, {"--trainer.max_steps", "20", "--model.trouble", "throw", "--report", "report.json"}),
              {.folder = folder.path()});
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "[rank 1] error: trouble in training_step, as asked for"));
  // Rank 0 only noticed that it lost the other.
  const std::string report = read_text(folder / "report.json");
  INFO(report);
  CHECK(says(report, "\"exit_code\": 1,"));
  CHECK(says(report, "trouble in training_step, as asked for"));
  CHECK(says(report, "\"run_dir\""));
}

TEST_CASE("launched: what all ranks say is shown once, and the launcher's last lines say that it is the same") {
  const TemporaryFolder folder;
  const Finished run = trainer(launched(2, {"--trainer.max_epochs", "1", "--trainer.callbacks+=EarlyStopping",
                                            "--trainer.callbacks.monitor", "accuracy"}),
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 2);
  const std::string message = "[callbacks.EarlyStopping] monitor 'accuracy' was not logged";
  const auto count = [&](const std::string& text) {
    size_t times = 0;
    for (size_t at = run.err.find(text); at != std::string::npos; at = run.err.find(text, at + 1)) ++times;
    return times;
  };
  CHECK(count("error: " + message) == 1);
  CHECK(count(message) == 1);
  CHECK(count("the run failed in train, epoch 0") == 1);
  CHECK_FALSE(says(run.err, "[rank 1] error"));
  CHECK(std::regex_search(
      run.err, std::regex("rank [01] of 2 exited with code 2\nThe others: rank [01] exited with code 2: the same\\.")));
  // What was trained is saved by all ranks together.
  CHECK(says(run.err, "What was trained until then is saved in "));
  CHECK(std::filesystem::exists(last_checkpoint(folder.path()) / "state.json"));
}

TEST_CASE("the plug-ins of a run are in its saved config, and in that of the best trial of a sweep") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, accelerator: cpu, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4], batch_size: 16}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  write_text(folder / "s.yaml", "method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1]}\n");
  const std::string plugin = FULGUR_PROBE_PLUGIN;
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--plugin", plugin});
    return trainer(arguments, {.folder = folder.path()});
  };
  const Finished fit = run({"fit", "-c", "c.yaml"});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  CHECK(says(read_text(folder / "fulgur_logs/version_0/config.yaml"), plugin));
  const Finished sweep = run({"sweep", "-c", "c.yaml", "--sweep", "s.yaml"});
  INFO(sweep.out << sweep.err);
  REQUIRE(sweep.exit_code == 0);
  const std::string command = " fit --config sweeps/s/best.yaml\n";
  CHECK(says(sweep.out, command));
  CHECK(says(read_text(folder / "sweeps/s/best.yaml"), plugin));
  CHECK(says(trainer({"sweep", "--show", "sweeps/s"}, {.folder = folder.path()}).out, command));
  // The config of the best trial names them, so the command needs no --plugin.
  CHECK(trainer({"fit", "--config", "sweeps/s/best.yaml"}, {.folder = folder.path()}).exit_code == 0);
}

TEST_CASE("a model whose layers have no inputs is refused with the option that is 0") {
  const TemporaryFolder folder;
  const Finished run = trainer({"fit", "--plugin", FULGUR_PROBE_PLUGIN, "--model", "ProbeWidth", "--model.hidden", "0",
                                "--data", "ProbeData", "--optimizer", "SGD"},
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(says(run.err, "its sizes are"));
  CHECK(says(run.err, "A layer must have at least one input and one output, and hidden"));
}

TEST_CASE(
    "F21: a group that fails is restarted and resumes from its newest checkpoint, as often as max_restarts says") {
  const TemporaryFolder quiet, hunted;
  const std::vector<std::string> options{"--trainer.max_steps", "30", "--trainer.callbacks+=ModelCheckpoint",
                                         "--trainer.callbacks.every_n_train_steps", "4"};
  REQUIRE(trainer(launched(2, options), {.folder = quiet.path()}).exit_code == 0);
  // Rank 1 is killed at step 6 whenever it comes there; it comes there once, since the second start begins at step 4…
  // and once more.
  std::vector<std::string> killed = options;
  killed.insert(killed.end(),
                {"--model.trouble", "kill", "--model.trouble_step", "6", "--trainer.strategy.max_restarts", "2"});
  const Finished run = trainer(launched(2, killed), {.folder = hunted.path()});
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "max_restarts 2"));
  CHECK(says(run.err, "epoch=0-step=4.ckpt"));
  // By hand from that checkpoint, without the trouble.
  std::vector<std::string> by_hand = options;
  by_hand.insert(by_hand.end(), {"--resume", "--allow-config-change", "--model.trouble_step", "6"});
  const Finished rest = trainer(launched(2, by_hand), {.folder = hunted.path()});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(same_bits(last_checkpoint(quiet.path()), last_checkpoint(hunted.path())));
}

TEST_CASE("F21: a group with a version of the logger is restarted in that version, whatever newer ones there are") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "fulgur_logs/version_5/checkpoints");
  const Finished run = trainer(
      launched(2, {"--trainer.max_steps", "8", "--trainer.logger", "[{class_path: CsvLogger, init_args: {version: 1}}]",
                   "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "4",
                   "--model.trouble", "kill", "--model.trouble_step", "6", "--trainer.strategy.max_restarts", "1"}),
      {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 5);  // rank 1 is killed at that step again
  CHECK(says(run.err, "version_1/checkpoints/epoch=0-step=4.ckpt"));
  CHECK_FALSE(says(run.err, "already exists"));
}

TEST_CASE("F4, launched: a rank that is killed on its way out of a finished run leaves nothing to do") {
  const int rank = GENERATE(0, 1);
  const TemporaryFolder folder;
  const Finished run =
      trainer(launched(2, {"--trainer.max_steps", "8", "--model.trouble", "kill_behind", "--model.trouble_rank",
                           std::to_string(rank), "--trainer.strategy.max_restarts", "1"}),
              {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "starting again, 1 of 1"));
  CHECK(says(run.err, "is finished (max_steps"));
  CHECK(run_folder(folder.path()).filename() == "version_0");  // and no other
}

TEST_CASE("F4, launched: ranks that are killed before there is a run do not resume from one that was there before") {
  const TemporaryFolder folder, quiet;
  const std::vector<std::string> options{"--trainer.max_steps", "20"};
  REQUIRE(trainer(launched(2, options), {.folder = quiet.path()}).exit_code == 0);
  REQUIRE(trainer(launched(2, {"--trainer.max_steps", "8"}), {.folder = folder.path()}).exit_code == 0);
  std::vector<std::string> killed = options;
  killed.insert(killed.end(), {"--model.trouble", "kill_before", "--trainer.strategy.max_restarts", "1"});
  const Finished run = trainer(launched(2, killed), {.folder = folder.path()});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.err, "starting again, 1 of 1"));
  CHECK(says(run.err, (std::filesystem::canonical(folder.path()) / "fulgur_logs/version_1").string()));
  CHECK(same_bits(last_checkpoint(quiet.path()), folder / "fulgur_logs/version_1/checkpoints/last.ckpt"));
}

TEST_CASE("launch: SIGTERM to the launcher ends the run with a checkpoint") {
  const TemporaryFolder folder;
  Running run(launched(2, {"--trainer.max_epochs", "-1", "--trainer.callbacks+=ProbeCallback",
                           "--trainer.callbacks.sleep_ms", "2"}),
              {.folder = folder.path()});
  REQUIRE(run.wait_until([&] {
    std::error_code error;
    return std::filesystem::file_size(folder / "fulgur_logs/version_0/metrics.jsonl", error) > 100 &&
           !error;  // nothing of it need exist yet
  }));
  // The ranks are called as the program is.
  const std::string launcher = std::to_string(run.pid());
  std::istringstream children(read_text("/proc/" + launcher + "/task/" + launcher + "/children"));
  size_t ranks = 0;
  for (std::string rank; children >> rank; ++ranks) CHECK(read_text("/proc/" + rank + "/comm") == "trainer\n");
  CHECK(ranks == 2);
  run.signal(SIGTERM);
  CHECK(run.wait().exit_code == 75);
  CHECK(std::filesystem::exists(last_checkpoint(folder.path())));
}

TEST_CASE("torchrun: starts the program, and restarts it if a rank is killed") {
  const std::string program = torchrun();
  if (const std::string reason = without_torchrun(program); !reason.empty()) {
    if (required("torchrun")) FAIL("torchrun is required: " << reason);
    SKIP(reason);
  }
  const TemporaryFolder quiet, hunted;
  std::vector<std::string> options{"--trainer.max_steps", "12", "--trainer.callbacks+=ModelCheckpoint",
                                   "--trainer.callbacks.every_n_train_steps", "4"};
  const auto run = [&](const TemporaryFolder& folder, const std::vector<std::string>& more) {
    std::vector<std::string> all = options;
    all.insert(all.end(), more.begin(), more.end());
    return shell("cd '" + folder.path().string() + "' && OMP_NUM_THREADS=1 '" + program +
                 "' --no-python --standalone --nproc-per-node 2 --max-restarts 1 '" + FULGUR_TRAINER_BIN + "'" +
                 quoted(launched(2, all)));
  };
  const Shell calm = run(quiet, {});
  INFO(calm.out);
  REQUIRE(calm.code == 0);
  CHECK(says(calm.out, "rank 0 of 2 (torchrun)"));
  // With one restart the second kill is the end; what was saved in between is the proof that it continued.
  const Shell killed = run(hunted, {"--model.trouble", "kill", "--model.trouble_step", "6"});
  CHECK(killed.code != 0);
  CHECK(says(killed.out, "epoch=0-step=4.ckpt"));
  const Shell rest = run(hunted, {"--resume", "--allow-config-change", "--model.trouble_step", "6"});
  INFO(rest.out);
  CHECK(rest.code == 0);
  CHECK(same_bits(last_checkpoint(quiet.path()), last_checkpoint(hunted.path())));
}

namespace {

// The checkpoint of the last "checkpoint: PATH" line of a rank 0 that took its place among `world` ranks.
std::string gone_on_from(const std::string& text, const std::string& world) {
  const size_t start = text.rfind(world),
               line = start == std::string::npos ? start : text.find("\ncheckpoint: ", start);
  if (line == std::string::npos) return "";
  const size_t begin = line + std::string("\ncheckpoint: ").size();
  return std::filesystem::path(text.substr(begin, text.find('\n', begin) - begin)).filename().string();
}

// A copy of the run in `from` as it was when `checkpoint` was its newest, continued manually over `world` ranks up to
// `max_steps`.
std::filesystem::path by_hand(const std::filesystem::path& from, const std::filesystem::path& to,
                              const std::string& checkpoint, int world, const std::string& max_steps,
                              std::vector<std::string> options) {
  namespace fs = std::filesystem;
  fs::create_directory(to);
  fs::copy(from / "fulgur_logs", to / "fulgur_logs", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const fs::path run = to / "fulgur_logs/version_0";
  fs::remove(run / "finished.json");
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    if (entry.path().filename() != checkpoint) others.push_back(entry.path());
  for (const fs::path& other : others) fs::remove_all(other);
  options.insert(options.end(), {"--trainer.max_steps", max_steps, "--trainer.callbacks.sleep_ms", "0",
                                 "--allow-config-change", "--resume"});
  if (world == 1)
    REQUIRE(all_exit({trainer(probe("fit", 1, 4, options), {.folder = to, .environment = {"OMP_NUM_THREADS=1"}})}, 0));
  else
    REQUIRE(all_exit(run_ranks({.count = world, .folder = to}, probe("fit", world, 4 * world, options)), 0));
  return run / "checkpoints/last.ckpt";
}

std::string step_of(const std::string& checkpoint) {
  const size_t begin = checkpoint.find("step=") + 5;
  return checkpoint.substr(begin, checkpoint.find_first_not_of("0123456789", begin) - begin);
}

}  // namespace

TEST_CASE(
    "torchrun: a node joins, and leaves again; the run resumes from its newest checkpoint over as many ranks as there "
    "are") {
  const std::string program = torchrun();
  if (const std::string reason = without_torchrun(program); !reason.empty()) {
    if (required("torchrun")) FAIL("torchrun is required: " << reason);
    SKIP(reason);
  }
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "run");
  // Steps are slow until both changes are over. Each rank has batches of 4, however many there are.
  const std::vector<std::string> options{"--data.num_train",
                                         "96",
                                         "--trainer.callbacks+=ModelCheckpoint",
                                         "--trainer.callbacks.every_n_train_steps",
                                         "4",
                                         "--trainer.callbacks.save_top_k",
                                         "-1",
                                         "--trainer.callbacks+=ProbeCallback",
                                         "--trainer.callbacks.sleep_until",
                                         (folder / "quick").string()};
  std::vector<std::string> all = options;
  all.insert(all.end(), {"--trainer.strategy", "ddp", "--trainer.strategy.timeout_s", "300",
                         "--trainer.strategy.start_timeout_s", "300", "--trainer.max_steps", "400",
                         "--trainer.callbacks.sleep_ms", "100", "--allow-config-change", "--resume"});
  // Without the first variable, torchrun 2.11 does not tell an agent that comes later where the store is.
  write_text(
      folder / "all.sh",
      "cd '" + (folder / "run").string() + "'\nexport OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n" +
          "node() { exec '" + program +
          "' --no-python --nnodes 1:2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:" +
          std::to_string(free_port()) +
          " --rdzv-id elastic --rdzv-conf last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6 "
          "--local-addr 127.0.0.1 --max-restarts 3 '" +
          FULGUR_TRAINER_BIN + "'" + quoted(probe("fit", 1, 4, all)) + " >../$1.txt 2>&1; }\n" +
          "until_said() { for i in $(seq 600); do cat ../a.txt ../b.txt 2>/dev/null | grep -q \"$1\" && return; "
          "sleep 0.1; done; echo \"nobody said $1\"; kill $a $b; exit 1; }\n"
          // A checkpoint of a signal is removed once there is a newer one: both are kept for what follows.
          "mkdir ../kept; touch ../keeping\n"
          "keep() { while [ -e ../keeping ]; do cp -rln fulgur_logs/*/checkpoints/epoch=*.ckpt ../kept 2>/dev/null; "
          "sleep 0.05; done; }\n"
          "keep & k=$!\n"
          "node a & a=$!\n"
          "until_said 'run folder'\n"
          "node b & b=$!\n"
          "until_said 'of 2 (torchrun)'; until_said 'processes 1 → 2'; sleep 1\n"
          "kill -TERM $b; wait $b\n"
          "until_said 'processes 2 → 1'\n"
          "touch ../quick; wait $a; code=$?; rm ../keeping; wait $k\n"
          "cp -rn ../kept/*.ckpt fulgur_logs/*/checkpoints/; exit $code\n");
  const Shell run = shell("bash '" + (folder / "all.sh").string() + "'");
  INFO(run.out);
  const std::string a = read_text(folder / "a.txt"), b = read_text(folder / "b.txt");
  INFO(a << "\n--- the other node\n" << b);
  REQUIRE(run.code == 0);
  const std::string both = says(a, "rank 0 of 2 (torchrun)") ? a : b;
  const std::string joined = gone_on_from(both, "rank 0 of 2 (torchrun)"), left = gone_on_from(a, "processes 2 → 1");
  CAPTURE(joined, left);
  REQUIRE(std::stoi(step_of(joined)) > 0);
  REQUIRE(std::stoi(step_of(left)) > std::stoi(step_of(joined)));
  CHECK(says(a, "400 steps"));
  const auto checkpoints = run_folder(folder / "run") / "checkpoints";
  CHECK(same_bits(by_hand(folder / "run", folder / "two", joined, 2, step_of(left), options), checkpoints / left));
  CHECK(same_bits(by_hand(folder / "run", folder / "one", left, 1, "400", options), checkpoints / "last.ckpt"));
}

TEST_CASE("mpirun: starts the program") {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) {
    if (required("mpirun")) FAIL("there is no mpirun, and it is required");
    SKIP("no mpirun on this machine");
  }
  const TemporaryFolder folder;
  const Shell run = shell("cd '" + folder.path().string() +
                          "' && OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                          "--oversubscribe --mca btl self,tcp -np 2 '" +
                          std::string(FULGUR_TRAINER_BIN) + "'" + quoted(launched(2, {"--trainer.max_steps", "4"})));
  INFO(run.out);
  CHECK(run.code == 0);
  CHECK(says(run.out, "rank 0 of 2 (mpi)"));
}

TEST_CASE("mpirun: nodes of two ranks and of one are distinguished when the ranks meet") {
  if (std::system("unshare --uts true >/dev/null 2>&1") != 0) SKIP("no host names can be given here (root is needed)");
  const TemporaryFolder one, many;
  const std::vector<std::string> steps{"--trainer.max_steps", "8", "--data.num_train", "72"};
  REQUIRE(trainer(probe("fit", 1, 12, steps), {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}}).exit_code ==
          0);
  const auto start = [&](const std::vector<std::string>& hosts, const std::string& num_nodes) {
    std::vector<std::string> arguments = probe("fit", 3, 12, steps);
    arguments.insert(arguments.end(), {"--trainer.devices", "auto", "--trainer.num_nodes", num_nodes});
    const std::string port = std::to_string(free_port());
    // Ranks 0 and 2 are on the first node, as mpirun --map-by node deals them.
    std::string command = "cd '" + many.path().string() + "'; ", ends;
    for (const int rank : {0, 1, 2}) {
      const std::string number = std::to_string(rank), local = std::to_string(rank / 2),
                        local_size = rank == 1 ? "1" : "2";
      command += "unshare --uts sh -c 'hostname " + hosts[static_cast<size_t>(rank)] +
                 "; exec \"$0\" \"$@\"' env OMP_NUM_THREADS=1 OMPI_COMM_WORLD_RANK=" + number +
                 " OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=" + local +
                 " OMPI_COMM_WORLD_LOCAL_SIZE=" + local_size + " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " '" +
                 FULGUR_TRAINER_BIN + "'" + quoted(arguments) + " & p" + number + "=$!; ";
      ends += "wait $p" + number + " || code=$?; ";
    }
    return shell(command + "code=0; " + ends + "exit $code");
  };
  const Shell told_wrong = start({"first", "second", "first"}, "3");
  INFO(told_wrong.out);
  CHECK(told_wrong.code == 5);
  CHECK(says(told_wrong.out, "2 nodes in all"));
  const Shell same_name = start({"first", "first", "first"}, "2");
  INFO(same_name.out);
  CHECK(same_name.code == 5);
  CHECK(says(same_name.out, "3 ranks run on 'first', and rank 0 was given local rank 0 of 2"));
  const Shell run = start({"first", "second", "first"}, "2");
  INFO(run.out);
  REQUIRE(run.code == 0);
  CHECK(says(run.out, "rank 0 of 3 (mpi)"));
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(many.path())) < 1e-6);
}

TEST_CASE("two nodes: a launcher on each, which are connected only by a cable, reach the weights of one process") {
  const TwoNetworks networks;
  if (!networks.ready()) SKIP("no network namespaces can be made here (root and iproute2 are needed)");
  const TemporaryFolder one, many;
  const std::vector<std::string> steps{"--trainer.max_steps", "20"};
  const Finished alone =
      trainer(probe("fit", 1, 12, steps), {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}});
  REQUIRE(alone.exit_code == 0);
  std::vector<std::string> arguments = probe("fit", 4, 12, steps);
  arguments.insert(arguments.end(), {"--trainer.devices", "2", "--trainer.num_nodes", "2"});
  std::string command = "cd '" + many.path().string() + "'; ";
  for (const int node : {0, 1})
    command += "ip netns exec fulgur-" + std::to_string(::getpid()) + "-" + std::to_string(node) +
               " env OMP_NUM_THREADS=1 NODE_RANK=" + std::to_string(node) + " MASTER_ADDR=" + TwoNetworks::address(0) +
               " MASTER_PORT=29400 '" + FULGUR_TRAINER_BIN + "'" + quoted(arguments) +
               (node == 0 ? " & first=$!; " : "; second=$?; wait $first && exit $second");
  const Shell run = shell(command);
  INFO(run.out);
  REQUIRE(run.code == 0);
  CHECK(says(run.out, std::string("rank 0 of 4 (launcher) · gloo over ") + TwoNetworks::address(0)));
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(many.path())) < 1e-6);
}

TEST_CASE("srun: starts the program in a cluster of one node") {
  const TemporaryFolder folder;
  const Shell run =
      shell("cd '" + folder.path().string() + "' && OMP_NUM_THREADS=1 '" + FULGUR_SLURM_ONE_NODE + "' srun -n 2 '" +
            FULGUR_TRAINER_BIN + "'" + quoted(launched(2, {"--trainer.max_steps", "4"})));
  if (run.code == 77) SKIP(run.out);
  INFO(run.out);
  CHECK(run.code == 0);
  CHECK(says(run.out, "rank 0 of 2 (slurm)"));
}

TEST_CASE("launch: a strategy of a plug-in is launched with as many processes as it requests") {
  const TemporaryFolder one, many;
  const std::vector<std::string> steps{"--trainer.max_steps", "20"};
  REQUIRE(trainer(probe("fit", 1, 8, steps), {.folder = one.path()}).exit_code == 0);
  std::vector<std::string> own{"--trainer.strategy", "LocalSgd", "--trainer.devices", "2"};
  own.insert(own.end(), steps.begin(), steps.end());
  const std::vector<std::string> arguments = probe("fit", 2, 8, own);
  const Finished run = trainer(arguments, {.folder = many.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.out + run.err, "strategy: LocalSgd"));
  // SGD steps by the mean of the gradients, or to the mean of the weights: the same.
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(many.path())) < 1e-6);
}

}  // namespace launch_test
