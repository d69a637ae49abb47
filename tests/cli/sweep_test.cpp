// The verb sweep: processes, resumption, halving, failures, and its exit codes.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fulgur/core/text/csv_format.h"
#include "process.h"

namespace sweep_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 4, num_threads: 1, accelerator: cpu, log_every_n_steps: 1, enable_model_summary: false, num_sanity_val_steps: 0, enable_progress_bar: false}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4], batch_size: 16}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";

constexpr const char* kGrid = R"(
method: grid
metric: val_loss
space:
  optimizer.init_args.lr: [0.01, 0.1]
  model.init_args.hidden: [[4], [8]]
)";

using Rows = std::vector<std::map<std::string, std::string>>;

struct Sweeps : TemporaryFolder {
  explicit Sweeps(const std::string& sweep = kGrid, const std::string& config = kConfig) {
    write_text(*this / "c.yaml", config);
    write_text(*this / "s.yaml", sweep);
  }
  static std::vector<std::string> arguments(const std::vector<std::string>& more) {
    std::vector<std::string> all{"sweep", "-c", "c.yaml", "--sweep", "s.yaml"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Finished operator()(const std::vector<std::string>& more = {},
                      const std::vector<std::string>& environment = {}) const {
    return trainer(arguments(more), {.folder = path(), .environment = environment});
  }
  Finished verb(const std::vector<std::string>& arguments) const { return trainer(arguments, {.folder = path()}); }
  Json state(const std::string& folder = "sweeps/s") const {
    return Json::parse(read_text(*this / folder / "sweep.json"));
  }
  std::vector<std::string> statuses(const std::string& folder = "sweeps/s") const {
    std::vector<std::string> all;
    const Json whole = state(folder);
    for (const Json& trial : whole["trials"]) all.push_back(trial["status"]);
    return all;
  }
  Rows rows(const std::string& folder = "sweeps/s") const {
    const std::string text = read_text(*this / folder / "sweep.csv");
    Rows all;
    size_t at = 0;
    const auto head = fulgur::read_csv_row(text, at);
    while (const auto row = fulgur::read_csv_row(text, at)) {
      if (row->size() != head->size()) break;
      all.emplace_back();
      for (size_t i = 0; i < head->size(); ++i) all.back()[(*head)[i]] = (*row)[i];
    }
    return all;
  }
};

/// Without what differs from run to run: times, and the version of a run that was killed before its first checkpoint.
Rows without_times(Rows rows) {
  for (auto& row : rows)
    for (const char* name : {"seconds", "run"}) row.erase(name);
  return rows;
}

std::vector<int> children_of(int pid) {
  const std::string id = std::to_string(pid), file = "/proc/" + id + "/task/" + id + "/children";
  std::vector<int> all;
  std::istringstream text(fs::exists(file) ? read_text(file) : "");
  for (int child = 0; text >> child;) all.push_back(child);
  return all;
}

/// The letter of /proc/PID/stat; empty if there is no such process.
std::string state_of(int pid) {
  const std::string file = "/proc/" + std::to_string(pid) + "/stat";
  const std::string text = fs::exists(file) ? read_text(file) : "";
  const size_t name = text.rfind(')');
  return name != std::string::npos && name + 2 < text.size() ? text.substr(name + 2, 1) : "";
}

/// A process that has ended may still be a zombie.
bool runs(int pid) { return !state_of(pid).empty() && state_of(pid) != "Z"; }

bool wait_for(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000; ++i) {
    if (condition()) return true;
    ::usleep(1000);
  }
  return false;
}

std::string variable_of(int pid, const std::string& name) {
  std::istringstream text(read_text("/proc/" + std::to_string(pid) + "/environ"));
  for (std::string variable; std::getline(text, variable, '\0');)
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  return "";
}

/// Halts the first trial of a sweep, which then acts on no signal but SIGKILL. Before it runs the program, it would
/// hold up the sweep.
int halted_trial(Running& run) {
  REQUIRE(run.wait_until([&] {
    const auto children = children_of(run.pid());
    return !children.empty() && !variable_of(children.front(), "FULGUR_FAILURE_PIPE").empty();
  }));
  const int child = children_of(run.pid()).front();
  ::kill(child, SIGSTOP);
  REQUIRE(run.wait_until([&] { return state_of(child) == "T"; }));
  return child;
}

}  // namespace

TEST_CASE("sweep: a grid with two jobs: table, csv, page, and a config that trains the best trial again") {
  const Sweeps sweeps;
  const Finished end = sweeps({"--jobs", "2"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(sweeps.statuses() == std::vector<std::string>(4, "completed"));
  const Rows rows = sweeps.rows();
  REQUIRE(rows.size() == 4);
  CHECK(rows[1].at("optimizer.init_args.lr") == "0.01");
  CHECK(rows[1].at("model.init_args.hidden") == "[8]");
  size_t best = 0;
  for (size_t i = 0; i < 4; ++i) {
    CHECK(rows[i].at("epochs") == "4");
    CHECK(fs::exists(sweeps / "sweeps/s" / rows[i].at("run") / "finished.json"));
    CHECK(says(read_text(sweeps / "sweeps/s" / ("trial_000" + std::to_string(i)) / "log.txt"), "max_epochs"));
    if (std::stod(rows[i].at("val_loss")) < std::stod(rows[best].at("val_loss"))) best = i;
  }
  CHECK(end.out.starts_with("trial  state      lr    hidden  val_loss"));
  CHECK(says(end.out, "\nsweeps/s/sweep.html\nbest: trial " + std::to_string(best) + "; train it with: "));
  CHECK(says(read_text(sweeps / "sweeps/s/sweep.html"), "log10") == false);
  CHECK(says(read_text(sweeps / "sweeps/s/sweep.html"), "val_loss by lr"));
  // The best config gives the same metric.
  const Finished again = sweeps.verb({"fit", "--config", "sweeps/s/best.yaml"});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  const Finished runs = sweeps.verb({"runs", "fulgur_logs", "--json"});
  CHECK(Json::parse(runs.out)[0]["best"]["value"] == std::stod(rows[best].at("val_loss")));
  // The runs of a sweep are runs.
  CHECK(sweeps.verb({"runs", "sweeps/s", "--quiet"}).out.starts_with("sweeps/s/trial_0000/"));
}

TEST_CASE("sweep: the command that trains the best trial again is quoted for a shell") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1]}\n");
  const Finished end = sweeps({"--trainer.max_epochs", "1", "--dir", "my sweep"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.out, " fit --config 'my sweep/best.yaml'\n"));
}

TEST_CASE("sweep: a mode that contradicts the name of the metric is a warning") {
  const Sweeps sweeps("method: grid\nmetric: val_acc\nspace: {optimizer.lr: [0.1]}\n");
  const Finished minimum = sweeps({"--trainer.max_epochs", "1"});
  INFO(minimum.err);
  CHECK(says(minimum.err, "sweep: a large value of 'val_acc' is usually better, but mode is min: write mode: max "));
  CHECK(says(minimum.err, "[sweep.mode]"));
  write_text(sweeps / "s.yaml", "method: grid\nmetric: val_acc\nmode: max\nspace: {optimizer.lr: [0.1]}\n");
  CHECK_FALSE(says(sweeps({"--trainer.max_epochs", "1", "--dir", "other"}).err, "sweep.mode"));
}

TEST_CASE("sweep: the same command again trains nothing, and --show writes the page again") {
  const Sweeps sweeps;
  REQUIRE(sweeps().exit_code == 0);
  const std::string csv = read_text(sweeps / "sweeps/s/sweep.csv");
  const Finished again = sweeps();
  CHECK(again.exit_code == 0);
  CHECK_FALSE(says(again.err, "starts"));
  CHECK(read_text(sweeps / "sweeps/s/sweep.csv") == csv);
  fs::remove(sweeps / "sweeps/s/sweep.html");
  const Finished shown = sweeps.verb({"sweep", "--show", "sweeps/s"});
  CHECK(shown.exit_code == 0);
  CHECK(shown.out == again.out);
  CHECK(fs::exists(sweeps / "sweeps/s/sweep.html"));
  CHECK(sweeps.verb({"sweep", "--show", "nowhere"}).exit_code == 2);
}

TEST_CASE("sweep: random points and seeds; the metric of two sweeps is the same to the bit") {
  const Sweeps sweeps(R"(
method: random
trials: 2
seed: 3
metric: val_loss
space: {optimizer.lr: {min: 1e-3, max: 0.1, scale: log}}
seeds: 2
)");
  const Finished end = sweeps({"--jobs", "2", "--dir", "a"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.out, "point  state"));
  CHECK(says(end.out, " ± "));
  REQUIRE(sweeps({"--dir", "b"}).exit_code == 0);
  const Rows rows = sweeps.rows("a");
  REQUIRE(rows.size() == 4);
  CHECK(without_times(rows) == without_times(sweeps.rows("b")));
  CHECK(rows[0].at("seed") == "1");
  CHECK(rows[1].at("seed") == "2");
  CHECK(rows[0].at("optimizer.lr") == rows[1].at("optimizer.lr"));
  CHECK(rows[0].at("optimizer.lr") != rows[2].at("optimizer.lr"));
  CHECK(rows[0].at("val_loss") != rows[1].at("val_loss"));
}

TEST_CASE("sweep: cross validation shows the mean over the folds, and its best config has no fold") {
  std::string table = "a,b,y\n";
  for (int i = 0; i < 40; ++i)
    table += std::to_string(i % 7) + "," + std::to_string(i % 5) + "," + (i % 2 ? "p\n" : "q\n");
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {}\nfolds: 2\n", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: TabularMlp}
data: {class_path: TableDataModule, init_args: {paths: [t.csv], target: [y], task: classification}}
link:
  model.init_args.task: data.task
  model.init_args.num_numbers: data.num_numbers
  model.init_args.cardinalities: data.cardinalities
  model.init_args.num_outputs: data.num_outputs
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  write_text(sweeps / "t.csv", table);
  const Finished end = sweeps({"--dir", "a"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.out, " ± "));
  CHECK(says(end.out, "best: point 0; train it with"));
  const Finished fixed = sweeps({"--dir", "b", "--data.fold", "1/5"});
  CHECK(fixed.exit_code == 2);
  CHECK(says(fixed.err, "sets data.fold for each trial, and the config has 1/5"));
  CHECK_FALSE(fs::exists(sweeps / "b"));
  const Rows rows = sweeps.rows("a");
  REQUIRE(rows.size() == 2);
  CHECK(rows[1].at("fold") == "2");
  CHECK(rows[0].at("val_loss") != rows[1].at("val_loss"));
  CHECK_FALSE(says(read_text(sweeps / "a/best.yaml"), "fold: 1/2"));
}

TEST_CASE("sweep: the best config of cross validation trains, whose statistics are those of more rows than a fold's") {
  std::string table = "a,b,y\n";
  for (int i = 0; i < 40; ++i)
    table += std::to_string(i % 7) + "," + std::to_string(i % 5) + "," + std::to_string(i * i % 11) + ".5\n";
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {}\nfolds: 2\n", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: TabularMlp}
data: {class_path: TableDataModule, init_args: {paths: [t.csv], target: [y], val_fraction: 0.2}}
link:
  model.init_args.task: data.task
  model.init_args.num_numbers: data.num_numbers
  model.init_args.cardinalities: data.cardinalities
  model.init_args.num_outputs: data.num_outputs
  model.init_args.target_mean: data.target_mean
  model.init_args.target_std: data.target_std
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  write_text(sweeps / "t.csv", table);
  const Finished end = sweeps({"--dir", "a"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  const Finished best = sweeps.verb({"fit", "--config", "a/best.yaml"});
  INFO(best.err);
  CHECK(best.exit_code == 0);
}

TEST_CASE("sweep: halving stops points early, and a promoted trial equals one that was never stopped") {
  const std::string halving = std::string(kGrid) + "halving: {factor: 2, min_epochs: 1}\n";
  // The learning rate depends on the length of the whole run.
  const std::string config = std::string(kConfig) +
                             "lr_scheduler: {class_path: OneCycleLR, init_args: {max_lr: 0.1, cycle_momentum: "
                             "false}}\nlr_scheduler_interval: step\n";
  const Sweeps sweeps(halving, config), whole(kGrid, config);
  const Finished end = sweeps({"--jobs", "2"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  REQUIRE(whole({"--jobs", "2"}).exit_code == 0);
  const Rows rows = sweeps.rows(), all = whole.rows();
  REQUIRE(rows.size() == 4);
  std::map<std::string, int> epochs;
  for (size_t i = 0; i < 4; ++i) {
    ++epochs[rows[i].at("epochs")];
    CHECK(rows[i].at("state") == (rows[i].at("epochs") == "4" ? "completed" : "stopped"));
    CHECK_FALSE(rows[i].at("val_loss@1").empty());
    if (rows[i].at("state") != "completed") continue;
    CHECK(rows[i].at("val_loss") == all[i].at("val_loss"));
    const auto log = [&](const Sweeps& of, const Rows& in) {
      return read_text(of / "sweeps/s" / in[i].at("run") / "metrics.jsonl");
    };
    CHECK(log(sweeps, rows) == log(whole, all));
  }
  CHECK(epochs == std::map<std::string, int>{{"1", 2}, {"2", 1}, {"4", 1}});
}

TEST_CASE("sweep: a trial of a higher rung keeps the rate that LearningRateFinder found, and does not scale it again") {
  const std::string space = "method: grid\nmetric: val_loss\nspace: {model.init_args.hidden: [[256], [128]]}\n";
  const std::string config = R"(
seed_everything: 1
trainer:
  max_epochs: 2
  num_threads: 1
  accelerator: cpu
  log_every_n_steps: 1
  enable_model_summary: false
  num_sanity_val_steps: 0
  enable_progress_bar: false
  scale_lr: linear
  base_batch_size: 2
  callbacks: [{class_path: LearningRateFinder, init_args: {steps: 60, max_lr: 10}}]
model: {class_path: MlpClassifier, init_args: {in_features: 64, num_classes: 3, hidden: [256]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 256, num_val: 64, num_classes: 3, shape: [64], batch_size: 16}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";
  const Sweeps sweeps(space + "halving: {factor: 2, min_epochs: 1}\n", config), whole(space, config);
  const Finished end = sweeps();
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  REQUIRE(whole().exit_code == 0);
  const Rows rows = sweeps.rows(), all = whole.rows();
  REQUIRE(rows.size() == 2);
  const size_t best = rows[0].at("state") == "completed" ? 0 : 1;
  REQUIRE(rows[best].at("epochs") == "2");
  REQUIRE(rows[1 - best].at("epochs") == "1");
  const auto file = [&](const Sweeps& of, const Rows& in, const char* name) {
    return read_text(of / "sweeps/s" / in[best].at("run") / name);
  };
  CHECK(file(sweeps, rows, "metrics.jsonl") == file(whole, all, "metrics.jsonl"));
  const auto found = [](const std::string& text) {
    const size_t at = text.find("found: ");
    return at == std::string::npos ? "" : text.substr(at, text.find_first_of("}\n,", at) - at);
  };
  const std::string rate = found(file(sweeps, rows, "config.yaml"));
  CHECK_FALSE(rate.empty());
  CHECK(rate != "found: null");
  CHECK(rate == found(file(whole, all, "config.yaml")));
  // The first rung has searched, and the second has not.
  const std::string log = read_text(sweeps / "sweeps/s" / ("trial_000" + std::to_string(best)) / "log.txt");
  const size_t searched = log.find("LearningRateFinder: learning rate ");
  REQUIRE(searched != std::string::npos);
  CHECK(log.find("LearningRateFinder: learning rate ", searched + 1) == std::string::npos);
  CHECK_FALSE(says(log, "rates of the checkpoint are multiplied"));
}

TEST_CASE("sweep: asynchronous halving completes at least one trial") {
  const Sweeps sweeps(std::string(kGrid) + "halving: {factor: 2, min_steps: 4, promotion: async}\n");
  // min_steps needs the length in steps.
  CHECK(sweeps().exit_code == 2);
  const Finished end = sweeps({"--trainer.max_steps", "16", "--jobs", "2"});
  INFO(end.out << end.err);
  REQUIRE(end.exit_code == 0);
  const auto statuses = sweeps.statuses();
  CHECK(std::ranges::count(statuses, "completed") >= 1);
  CHECK(std::ranges::count(statuses, "completed") + std::ranges::count(statuses, "stopped") == 4);
}

TEST_CASE("sweep: ended by a signal or killed, and continued, it has the table of a quiet sweep") {
  const std::string sweep = std::string(kGrid) + "halving: {factor: 2, min_epochs: 12}\n";
  const Sweeps quiet(sweep);
  REQUIRE(quiet({"--trainer.max_epochs", "24"}).exit_code == 0);
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    CAPTURE(signal);
    const Sweeps sweeps(sweep);
    std::vector<int> children;
    {
      Running run(Sweeps::arguments({"--jobs", "2", "--trainer.max_epochs", "24"}), {.folder = sweeps.path()});
      REQUIRE(run.wait_until([&] {
        return fs::exists(sweeps / "sweeps/s/sweep.json") && sweeps.statuses()[1] != "pending" &&
               fs::exists(sweeps / "sweeps/s/trial_0000/fulgur_logs/version_0/checkpoints");
      }));
      children = children_of(run.pid());
      CHECK_FALSE(children.empty());
      run.signal(signal);
      const Finished end = run.wait();
      INFO(end.err);
      CHECK(end.exit_code == (signal == SIGTERM ? 75 : signal == SIGINT ? 130 : 128 + SIGKILL));
      if (signal != SIGKILL) CHECK(says(end.err, "the same command continues it"));
    }
    for (const int child : children) CHECK(wait_for([&] { return !runs(child); }));
    const Finished end = sweeps({"--jobs", "2", "--trainer.max_epochs", "24"});
    INFO(end.out << end.err);
    REQUIRE(end.exit_code == 0);
    CHECK(without_times(sweeps.rows()) == without_times(quiet.rows()));
  }
}

TEST_CASE("sweep: a second signal ends it at once") {
  const Sweeps sweeps;
  Running run(Sweeps::arguments({"--trainer.max_epochs", "1000000"}), {.folder = sweeps.path()});
  const int child = halted_trial(run);
  run.signal(SIGINT);
  REQUIRE(run.wait_until([&] { return says(run.err(), "a second signal ends them at once"); }));
  run.signal(SIGINT);
  const Finished end = run.wait();
  INFO(end.err);
  CHECK(end.exit_code == 130);
  CHECK_FALSE(runs(child));
  CHECK(sweeps.statuses()[0] == "interrupted");
}

TEST_CASE("sweep: trials that do not end within the grace time are killed") {
  const Sweeps sweeps;
  Running run(Sweeps::arguments({"--trainer.max_epochs", "1000000", "--grace", "0.2"}), {.folder = sweeps.path()});
  const int child = halted_trial(run);
  run.signal(SIGTERM);
  const Finished end = run.wait();
  INFO(end.err);
  CHECK(end.exit_code == 75);
  CHECK(says(end.err, "--grace"));
  CHECK_FALSE(runs(child));
}

TEST_CASE("sweep: SIGUSR1 saves the running trials, and the sweep continues") {
  const Sweeps sweeps;
  Running run(Sweeps::arguments({"--trainer.max_epochs", "1000000"}), {.folder = sweeps.path()});
  REQUIRE(run.wait_until(
      [&] { return fs::exists(sweeps / "sweeps/s/trial_0000/fulgur_logs/version_0/checkpoints/last.ckpt"); }));
  run.signal(SIGUSR1);
  CHECK(run.wait_until([&] { return says(read_text(sweeps / "sweeps/s/trial_0000/log.txt"), "SIGUSR1: saved"); }));
  CHECK_FALSE(run.has_ended());
  run.signal(SIGINT);
  CHECK(run.wait().exit_code == 130);
}

TEST_CASE("sweep: a trial that is stopped from outside is left for the next call") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1, 0.2]}\n");
  Running run(Sweeps::arguments({"--trainer.max_epochs", "100"}), {.folder = sweeps.path()});
  REQUIRE(run.wait_until([&] {
    return !children_of(run.pid()).empty() &&
           fs::exists(sweeps / "sweeps/s/trial_0000/fulgur_logs/version_0/checkpoints/last.ckpt");
  }));
  ::kill(children_of(run.pid()).front(), SIGTERM);
  const Finished end = run.wait();
  INFO(end.err);
  CHECK(end.exit_code == 75);
  CHECK(sweeps.statuses() == std::vector<std::string>{"interrupted", "completed"});
  CHECK(sweeps({"--trainer.max_epochs", "100"}).exit_code == 0);
  CHECK(sweeps.statuses()[0] == "completed");
}

TEST_CASE("sweep: a trial that a signal ends while it starts is left for the next call, and a killed one has failed") {
  for (const int signal : {SIGTERM, SIGKILL}) {
    CAPTURE(signal);
    const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1, 0.2]}\n");
    Running run(Sweeps::arguments({"--trainer.max_epochs", "1"}), {.folder = sweeps.path()});
    const int child = halted_trial(run);
    ::kill(child, signal);
    ::kill(child, SIGCONT);
    const Finished end = run.wait();
    INFO(end.err);
    CHECK(end.exit_code == (signal == SIGKILL ? 1 : 75));
    CHECK(sweeps.statuses() == std::vector<std::string>{signal == SIGKILL ? "failed" : "interrupted", "completed"});
    CHECK(sweeps.state()["trials"][0]["reason"].get<std::string>().empty() == (signal != SIGKILL));
    if (signal == SIGKILL) continue;
    CHECK(sweeps({"--trainer.max_epochs", "1"}).exit_code == 0);
    CHECK(sweeps.statuses()[0] == "completed");
  }
}

TEST_CASE("sweep: stop_after in the config ends no trial, neither in a sweep nor in an array job") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1]}\n");
  const Finished end = sweeps({"--trainer.stop_after", "1ep"});
  INFO(end.out << end.err);
  CHECK(end.exit_code == 0);
  CHECK(sweeps.rows()[0].at("epochs") == "4");
  REQUIRE(sweeps({"--trainer.stop_after", "1ep", "--dir", "array", "--trial", "0"}).exit_code == 0);
  CHECK(sweeps.verb({"sweep", "--collect", "array"}).exit_code == 0);
  CHECK(sweeps.rows("array")[0].at("epochs") == "4");
}

TEST_CASE("sweep: an error of the sweep itself lets the running trials save") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {trainer.max_epochs: [1000000, 1, 2]}\n");
  // The log of the third trial cannot be written.
  fs::create_directories(sweeps / "sweeps/s/trial_0002/log.txt");
  Running run(Sweeps::arguments({"--jobs", "2"}), {.folder = sweeps.path()});
  // The second trial ends while it is halted, and before the first one has ended.
  REQUIRE(run.wait_until([&] { return children_of(run.pid()).size() == 2; }));
  const int second = children_of(run.pid()).back();
  REQUIRE(run.wait_until([&] { return !variable_of(second, "FULGUR_FAILURE_PIPE").empty(); }));
  ::kill(second, SIGSTOP);
  CHECK(run.wait_until(
      [&] { return fs::exists(sweeps / "sweeps/s/trial_0000/fulgur_logs/version_0/checkpoints/last.ckpt"); }));
  ::kill(second, SIGCONT);
  const Finished end = run.wait();
  INFO(end.err);
  CHECK(end.exit_code == 1);
  CHECK(says(end.err, "the log of a trial cannot be written"));
  CHECK(sweeps.statuses() == std::vector<std::string>{"interrupted", "completed", "pending"});
}

TEST_CASE("sweep: a trial that fails leaves the others alone; --retry_failed starts it again") {
  const Sweeps sweeps(R"(
method: grid
metric: val_loss
space: {optimizer.lr: [0.1, 1e30]}
)");
  const Finished end = sweeps();
  INFO(end.out << end.err);
  CHECK(end.exit_code == 1);
  CHECK(sweeps.statuses() == std::vector<std::string>{"completed", "failed"});
  CHECK(says(sweeps.state()["trials"][1]["reason"].get<std::string>(), "exit code 6: "));
  CHECK(says(end.out, "exit code 6"));
  const Finished same = sweeps();
  CHECK(same.exit_code == 1);
  CHECK_FALSE(says(same.err, "trial 1 starts"));
  const Finished retried = sweeps({"--retry_failed"});
  CHECK(retried.exit_code == 1);
  CHECK(says(retried.err, "trial 1 starts"));
  CHECK_FALSE(says(retried.err, "trial 0 starts"));
}

TEST_CASE("sweep: a metric that the first trial does not log ends the sweep, which continues with the right one") {
  const std::string space = "\nspace: {optimizer.lr: [0.1, 0.01, 0.2]}\n";
  const Sweeps sweeps("method: grid\nmetric: val_los" + space);
  const Finished end = sweeps();
  INFO(end.err);
  CHECK(end.exit_code == 2);
  CHECK(says(end.err, "trial 0: the metric 'val_los' was not logged"));
  CHECK(says(end.err, "did you mean 'val_loss'? Correct the metric in the sweep file"));
  CHECK(sweeps.statuses() == std::vector<std::string>{"failed", "pending", "pending"});
  CHECK_FALSE(fs::exists(sweeps / "sweeps/s/best.yaml"));
  // With the wrong name the same command trains nothing more.
  const Finished same = sweeps();
  CHECK(same.exit_code == 2);
  CHECK_FALSE(says(same.err, "starts"));
  write_text(sweeps / "s.yaml", "method: grid\nmetric: val_loss" + space);
  const Finished corrected = sweeps();
  INFO(corrected.out << corrected.err);
  CHECK(corrected.exit_code == 0);
  CHECK_FALSE(says(corrected.err, "trial 0 "));
  CHECK(says(corrected.err, "trial 2 starts"));
  CHECK(sweeps.statuses() == std::vector<std::string>(3, "completed"));
  CHECK(fs::exists(sweeps / "sweeps/s/best.yaml"));
}

TEST_CASE("sweep: finished trials are ranked again by another metric, also by --collect") {
  const std::string space = "\nspace: {optimizer.lr: [0.1, 1e-6]}\n";
  const Sweeps sweeps("method: grid\nmetric: val_loss" + space);
  const Finished first = sweeps();
  REQUIRE(first.exit_code == 0);
  const auto best_of = [](const Finished& end) {
    return end.out.substr(std::min(end.out.find("best: "), end.out.size()), 13);
  };
  CHECK(best_of(first) == "best: trial 0");
  write_text(sweeps / "s.yaml", "method: grid\nmetric: val_loss\nmode: max\nvalue: last" + space);
  const Finished worst = sweeps();
  INFO(worst.err);
  CHECK(worst.exit_code == 0);
  CHECK_FALSE(says(worst.err, "starts"));
  CHECK(best_of(worst) == "best: trial 1");
  write_text(sweeps / "s.yaml", "method: grid\nmetric: train_loss" + space);
  const Finished collected = sweeps.verb({"sweep", "--collect", "sweeps/s", "--sweep", "s.yaml"});
  INFO(collected.err);
  CHECK(collected.exit_code == 0);
  CHECK(best_of(collected) == "best: trial 0");
  CHECK(says(collected.out, "train_loss"));
  CHECK(says(sweeps.state()["sweep"].get<std::string>(), "train_loss"));
  // Other changes are refused, and --show changes nothing.
  write_text(sweeps / "s.yaml", "method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1, 1e-5]}\n");
  const Finished other = sweeps.verb({"sweep", "--collect", "sweeps/s", "--sweep", "s.yaml"});
  CHECK(other.exit_code == 2);
  CHECK(says(other.err, "sweep: space.optimizer.lr"));
  CHECK(sweeps.verb({"sweep", "--show", "sweeps/s", "--sweep", "s.yaml"}).exit_code == 2);
}

TEST_CASE("sweep: with halving, a metric that is not logged ends the sweep at the first rung") {
  const std::string rest = "\nspace: {optimizer.lr: [0.1, 0.01]}\nhalving: {factor: 2, min_epochs: 1}\n";
  const Sweeps sweeps("method: grid\nmetric: val_los" + rest), quiet("method: grid\nmetric: val_loss" + rest);
  const Finished end = sweeps();
  INFO(end.err);
  CHECK(end.exit_code == 2);
  CHECK(says(end.err, "did you mean 'val_loss'?"));
  CHECK(sweeps.statuses() == std::vector<std::string>{"failed", "pending"});
  write_text(sweeps / "s.yaml", "method: grid\nmetric: val_loss" + rest);
  const Finished corrected = sweeps();
  INFO(corrected.out << corrected.err);
  CHECK(corrected.exit_code == 0);
  REQUIRE(quiet().exit_code == 0);
  CHECK(without_times(sweeps.rows()) == without_times(quiet.rows()));
  // Points were stopped by this metric.
  write_text(sweeps / "s.yaml", "method: grid\nmetric: train_loss" + rest);
  const Finished changed = sweeps();
  CHECK(changed.exit_code == 2);
  CHECK(says(changed.err, "sweep: metric: val_loss in the sweep's folder, train_loss now"));
}

TEST_CASE("sweep: mistakes are found before anything starts") {
  const auto refused = [](const std::string& sweep, const std::string& part,
                          const std::vector<std::string>& more = {}) {
    const Sweeps sweeps(sweep);
    const Finished end = sweeps(more);
    INFO(end.err);
    CHECK(end.exit_code == 2);
    CHECK(says(end.err, part));
    CHECK_FALSE(fs::exists(sweeps / "sweeps"));
  };
  const std::string start = "method: grid\nmetric: val_loss\n";
  refused(start + "space: {optimizer.init_args.lrr: [0.1]}", "did you mean 'lr'?");
  refused(start + "space: {optimizer.init_args.lrr: [0.1]}", "s.yaml:3:9: optimizer.init_args.lrr: unknown key");
  refused(start + "space: {optimizer.lr: [0.1, -1]}", "s.yaml:3:9: optimizer.init_args.lr: ");
  refused(start + "space: {optimizer.lr: [0.1, -1]}", "[cli.sweep] trial 1 (lr=-1) cannot start");
  refused(start + "spase: {optimizer.lr: [0.1]}", "did you mean 'space'?");
  refused(kGrid, "checkpoint", {"--trainer.enable_checkpointing", "false"});
  refused(kGrid, "CsvLogger", {"--trainer.logger", "false"});
  refused(kGrid, "cannot start: trials must not share the folder of OnExceptionCheckpoint",
          {"--trainer.callbacks+=OnExceptionCheckpoint", "--trainer.callbacks.dirpath", "crashed"});
  refused(kGrid, "--ckpt_path", {"--ckpt_path", "x.ckpt"});
  refused(kGrid, "--report", {"--report", "r.json"});
  refused(std::string(kGrid) + "seeds: 2\n", "`seeds` of the sweep file sets seed_everything",
          {"--seed_everything", "5"});
  refused(kGrid, "--jobs", {"--jobs", "0"});
  refused(kGrid, "--grace must be a number of seconds; got 'nan'", {"--grace", "nan"});
  refused(kGrid, "2 jobs with 2 devices need 4, and there are 3",
          {"--jobs", "2", "--devices_per_trial", "2", "--device_list", "0,1,2"});
  refused(std::string(kGrid) + "halving: {min_epochs: 4}", "must be below trainer.max_epochs");
  refused(kGrid, "from 0 to 3; --trial is 4", {"--trial", "4", "--dir", "other"});
  const Sweeps sweeps;
  CHECK(sweeps.verb({"sweep", "-c", "c.yaml"}).exit_code == 2);
  CHECK(sweeps.verb({"sweep", "-c", "c.yaml", "--sweep", "nowhere.yaml"}).exit_code == 2);
  CHECK(sweeps.verb({"sweep", "--show", "a", "--collect", "b"}).exit_code == 2);
}

TEST_CASE("sweep: values that only the trials give may complete the config") {
  const std::string config = R"(
trainer: {max_epochs: 1, num_threads: 1, accelerator: cpu, enable_model_summary: false, enable_progress_bar: false}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4], batch_size: 16}}
)";
  const Sweeps sweeps(R"(
method: grid
metric: val_loss
space:
  optimizer.lr: [0.1]
  optimizer.class_path: [SGD, AdamW]
  model: [{class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}]
)",
                      config);
  const Finished end = sweeps();
  INFO(end.err);
  REQUIRE(end.exit_code == 0);
  const std::string saved = read_text(sweeps / "sweeps/s" / sweeps.rows()[1].at("run") / "config.yaml");
  CHECK(says(saved, "class_path: AdamW"));
  CHECK(says(saved, "lr: 0.1"));
}

TEST_CASE("sweep: a changed sweep or config is refused, and says what differs") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1]}\n");
  REQUIRE(sweeps().exit_code == 0);
  const Finished config = sweeps({"--trainer.max_epochs", "5"});
  CHECK(config.exit_code == 2);
  CHECK(says(config.err, "config: trainer.max_epochs: 4 in the sweep's folder, 5 now"));
  write_text(sweeps / "s.yaml", "method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.2]}\n");
  const Finished space = sweeps();
  CHECK(space.exit_code == 2);
  CHECK(says(space.err, "sweep: space.optimizer.lr: [0.1] in the sweep's folder, [0.2] now"));
  CHECK(sweeps({"--dir", "other"}).exit_code == 0);
  write_text(sweeps / "other/sweep.json", "{");
  const Finished damaged = sweeps({"--dir", "other"});
  CHECK(damaged.exit_code == 3);
  CHECK(says(damaged.err, "other/sweep.json is damaged"));
}

TEST_CASE("sweep: a changed value of an environment variable in the config is refused, without showing it") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1]}\n");
  std::string config = kConfig;
  config.replace(config.find("batch_size: 16"), 0, "seed: \"${env:DATA_SEED}\", ");
  config.replace(config.find("num_threads: 1"), 0,
                 "logger: {class_path: CsvLogger, init_args: {name: \"${env:JOB}\"}}, ");
  write_text(sweeps / "c.yaml", config);
  const Finished first = sweeps({}, {"DATA_SEED=17", "JOB=1"});
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  CHECK(sweeps({}, {"DATA_SEED=17", "JOB=2"}).exit_code == 0);
  const Finished changed = sweeps({}, {"DATA_SEED=18", "JOB=1"});
  INFO(changed.err);
  CHECK(changed.exit_code == 2);
  CHECK(says(changed.err, "config: ${env:DATA_SEED} had another value when the sweep began"));
  const std::string saved = sweeps.state()["environment"].dump();
  CHECK(says(saved, "DATA_SEED"));
  CHECK_FALSE(says(saved, "\"17\""));
}

TEST_CASE("sweep: two sweeps in one folder are an error") {
  const Sweeps sweeps;
  Running run(Sweeps::arguments({"--trainer.max_epochs", "1000000"}), {.folder = sweeps.path()});
  REQUIRE(run.wait_until([&] { return !children_of(run.pid()).empty(); }));
  const Finished second = sweeps({"--trainer.max_epochs", "1000000"});
  CHECK(second.exit_code == 2);
  CHECK(says(second.err, "is locked by pid " + std::to_string(run.pid())));
  // It can be shown while it runs.
  const Finished shown = sweeps.verb({"sweep", "--show", "sweeps/s"});
  CHECK(shown.exit_code == 0);
  CHECK(says(shown.out, "running"));
  run.signal(SIGINT);
  CHECK(run.wait().exit_code == 130);
}

TEST_CASE("sweep: each running trial has its own devices and its share of the threads") {
  const Sweeps sweeps;
  const auto environments = [&](const std::vector<std::string>& more, const std::vector<std::string>& environment,
                                const std::string& name) {
    std::vector<std::string> values;
    std::vector<std::string> arguments = Sweeps::arguments({"--trainer.max_epochs", "1000000", "--dir", name});
    arguments.insert(arguments.end(), more.begin(), more.end());
    Running run(arguments, {.folder = sweeps.path(), .environment = environment});
    REQUIRE(run.wait_until([&] { return children_of(run.pid()).size() == 2; }));
    // Between fork and exec a child has the environment of the sweep.
    for (const int child : children_of(run.pid()))
      REQUIRE(run.wait_until([&] { return !variable_of(child, "FULGUR_FAILURE_PIPE").empty(); }));
    for (const int child : children_of(run.pid()))
      values.push_back(variable_of(child, "CUDA_VISIBLE_DEVICES") + " " + variable_of(child, "OMP_NUM_THREADS"));
    std::ranges::sort(values);
    run.signal(SIGINT);
    run.signal(SIGINT);
    run.wait();
    return values;
  };
  CHECK(environments({"--device_list", "4,7"}, {"OMP_NUM_THREADS=3"}, "a") == std::vector<std::string>{"4 3", "7 3"});
  CHECK(environments({"--devices_per_trial", "2"}, {"CUDA_VISIBLE_DEVICES=0,2,4,6", "OMP_NUM_THREADS=1"}, "b") ==
        std::vector<std::string>{"0,2 1", "4,6 1"});
  const auto shared = environments({"--jobs", "2"}, {"OMP_NUM_THREADS=", "CUDA_VISIBLE_DEVICES=5"}, "c");
  for (const std::string& value : shared) {
    CHECK(value.starts_with("5 "));
    CHECK(std::stoi(value.substr(2)) >= 1);
  }
}

TEST_CASE("sweep: a trial keeps its number of threads when the sweep continues with other jobs") {
  const Sweeps sweeps;
  const auto threads_with = [&](size_t jobs) {
    Running run(Sweeps::arguments({"--trainer.max_epochs", "1000000", "--jobs", std::to_string(jobs)}),
                {.folder = sweeps.path(), .environment = {"OMP_NUM_THREADS="}});
    REQUIRE(run.wait_until([&] { return children_of(run.pid()).size() == jobs; }));
    std::vector<std::string> values;
    for (const int child : children_of(run.pid())) {
      REQUIRE(run.wait_until([&] { return !variable_of(child, "FULGUR_FAILURE_PIPE").empty(); }));
      values.push_back(variable_of(child, "OMP_NUM_THREADS"));
      // A trial with several processes divides them.
      CHECK(variable_of(child, "FULGUR_DIVIDE_THREADS") == "1");
    }
    run.signal(SIGINT);
    run.signal(SIGINT);
    run.wait();
    return values;
  };
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  const std::string all = std::to_string(CPU_COUNT(&set));
  CHECK(threads_with(1) == std::vector<std::string>{all});
  CHECK(sweeps.state()["threads"] == CPU_COUNT(&set));
  CHECK(threads_with(2) == std::vector<std::string>{all, all});
}

TEST_CASE("sweep: best.yaml has the user's root folder, and is removed when no trial is complete") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1]}\n");
  const std::vector<std::string> root{"--trainer.default_root_dir", "mine"};
  REQUIRE(sweeps(root).exit_code == 0);
  const auto best = sweeps / "sweeps/s/best.yaml";
  CHECK(says(read_text(best), "default_root_dir: mine\n"));
  CHECK_FALSE(fs::exists(sweeps / "mine"));
  const auto run = sweeps / "sweeps/s/trial_0000/fulgur_logs/version_0";
  fs::rename(run / "config.yaml", run / "moved.yaml");
  const Finished shown = sweeps.verb({"sweep", "--show", "sweeps/s"});
  CHECK(shown.exit_code == 0);
  CHECK(says(shown.out, "the config of its run cannot be read"));
  CHECK_FALSE(fs::exists(best));
  fs::rename(run / "moved.yaml", run / "config.yaml");
  REQUIRE(sweeps.verb({"sweep", "--show", "sweeps/s"}).exit_code == 0);
  CHECK(fs::exists(best));
  fs::remove(run / "finished.json");
  CHECK(sweeps.verb({"sweep", "--collect", "sweeps/s"}).exit_code == 75);
  CHECK_FALSE(fs::exists(best));
}

TEST_CASE("sweep: --collect keeps the failures of a sweep that one process has run") {
  const Sweeps sweeps("method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1, 1e30]}\n");
  REQUIRE(sweeps().exit_code == 1);
  const Json before = sweeps.state();
  CHECK(sweeps.verb({"sweep", "--collect", "sweeps/s"}).exit_code == 1);
  CHECK(sweeps.state() == before);
  const Finished same = sweeps();
  CHECK(same.exit_code == 1);
  CHECK_FALSE(says(same.err, "trial 1 "));
}

TEST_CASE("sweep: keys of a grid in another order are refused") {
  const Sweeps sweeps(
      "method: grid\nmetric: val_loss\nspace: {optimizer.lr: [0.1, 0.2], model.init_args.hidden: [[4], [8]]}\n");
  REQUIRE(sweeps({"--trainer.max_epochs", "1"}).exit_code == 0);
  write_text(sweeps / "s.yaml",
             "method: grid\nmetric: val_loss\nspace: {model.init_args.hidden: [[4], [8]], optimizer.lr: [0.1, 0.2]}\n");
  const Finished moved = sweeps({"--trainer.max_epochs", "1"});
  CHECK(moved.exit_code == 2);
  CHECK(says(moved.err, "trial 1 is lr=0.1 hidden=[8] in the sweep's folder, hidden=[4] lr=0.2 now"));
}

TEST_CASE("sweep: an array job: one process per trial, then --collect") {
  const Sweeps sweeps, local;
  REQUIRE(local({"--jobs", "2"}).exit_code == 0);
  for (const int trial : {2, 0, 3}) {
    const Finished end = sweeps({"--trial", std::to_string(trial)});
    INFO(end.err);
    CHECK(end.exit_code == 0);
    CHECK(fs::exists(sweeps / "sweeps/s" / ("trial_000" + std::to_string(trial)) /
                     "fulgur_logs/version_0/finished.json"));
  }
  // The state is that of --collect.
  CHECK(sweeps.statuses() == std::vector<std::string>(4, "pending"));
  const Finished some = sweeps.verb({"sweep", "--collect", "sweeps/s"});
  INFO(some.out << some.err);
  CHECK(some.exit_code == 75);
  CHECK(sweeps.statuses() == std::vector<std::string>{"completed", "pending", "completed", "completed"});
  CHECK(sweeps({"--trial", "1"}).exit_code == 0);
  CHECK(sweeps.verb({"sweep", "--collect", "sweeps/s"}).exit_code == 0);
  CHECK(without_times(sweeps.rows()) == without_times(local.rows()));
  // Another sweep file, and halving, which compares trials.
  write_text(sweeps / "s.yaml", std::string(kGrid) + "seeds: 2\n");
  CHECK(sweeps({"--trial", "1"}).exit_code == 2);
  write_text(sweeps / "s.yaml", std::string(kGrid) + "halving: {min_epochs: 1}\n");
  const Finished halving = sweeps({"--trial", "1", "--dir", "other"});
  CHECK(halving.exit_code == 2);
  CHECK(says(halving.err, "halving compares trials"));
}

}  // namespace sweep_test
