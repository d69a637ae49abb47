// The verbs that show run folders.
#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "process.h"

namespace history_verbs_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 2, num_threads: 1, log_every_n_steps: 1, enable_model_summary: false, num_sanity_val_steps: 0}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4], batch_size: 16}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";

struct Runs : TemporaryFolder {
  Runs() { write_text(*this / "c.yaml", kConfig); }
  Finished operator()(const std::vector<std::string>& arguments) const {
    return trainer(arguments, {.folder = path()});
  }
  Finished fit(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"fit", "-c", "c.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return (*this)(arguments);
  }
};

}  // namespace

TEST_CASE("runs: a finished and a failed run, and what differs between them") {
  const Runs runs;
  REQUIRE(runs.fit().exit_code == 0);
  const Finished failed = runs.fit(
      {"--optimizer.lr", "0.2", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "no_such"});
  REQUIRE(failed.exit_code != 0);
  const Finished table = runs({"runs"});
  INFO(table.out << table.err);
  CHECK(table.exit_code == 0);
  CHECK(says(table.out, "version_0  finished"));
  CHECK(says(table.out, "version_1  failed"));
  CHECK(says(table.out, "lr=0.2"));
  CHECK_FALSE(says(table.out, "\x1b"));
  const Finished json = runs({"runs", "fulgur_logs", "--json", "--filter", "status=finished"});
  REQUIRE(json.exit_code == 0);
  const Json all = Json::parse(json.out);
  REQUIRE(all.size() == 1);
  CHECK(all[0]["epochs"] == 2);
  CHECK(all[0]["steps"] == 8);
  CHECK(all[0]["monitor"]["metric"] == "val_loss");
  CHECK(runs({"runs", "--quiet", "--sort=-name"}).out == "fulgur_logs/version_1\nfulgur_logs/version_0\n");
}

TEST_CASE("runs: a failed run that is resumed and finishes is no longer a failed one") {
  const Runs runs;
  REQUIRE(runs.fit({"--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "no_such"}).exit_code != 0);
  REQUIRE(fs::exists(runs / "fulgur_logs/version_0/failed.json"));
  const Finished resumed = runs.fit({"--resume"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK_FALSE(fs::exists(runs / "fulgur_logs/version_0/failed.json"));
  CHECK(says(runs({"runs"}).out, "version_0  finished"));
}

TEST_CASE("runs: a fit that a mistake in its config ends before its first batch leaves no run") {
  const Runs runs;
  const std::vector<std::string> mistake{"--trainer.callbacks+=Finetuning", "--trainer.callbacks.freeze",
                                         "[\"no.such.*\"]"};
  const Finished failed = runs.fit(mistake);
  INFO(failed.err);
  REQUIRE(failed.exit_code == 2);
  CHECK_FALSE(fs::exists(runs / "fulgur_logs/version_0"));
  std::vector<std::string> of_two = mistake;
  of_two.insert(of_two.end(), {"--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.accelerator", "cpu"});
  const Finished of_ranks = runs.fit(of_two);
  INFO(of_ranks.err);
  REQUIRE(of_ranks.exit_code == 2);
  CHECK(says(of_ranks.err, "no.such"));
  CHECK_FALSE(fs::exists(runs / "fulgur_logs/version_0"));
  // A run that is resumed keeps its folder.
  REQUIRE(runs.fit({"--trainer.stop_after", "1ep"}).exit_code == 0);
  std::vector<std::string> resumed = mistake;
  resumed.insert(resumed.end(), {"--resume", "--allow-config-change"});
  CHECK(runs.fit(resumed).exit_code != 0);
  CHECK(fs::exists(runs / "fulgur_logs/version_0/checkpoints/last.ckpt"));
}

TEST_CASE("runs: a run that a signal stops is interrupted, and one that trains is running") {
  const Runs runs;
  Running fit({"fit", "-c", "c.yaml", "--trainer.max_epochs", "1000000"}, {.folder = runs.path()});
  REQUIRE(fit.wait_until([&] { return fs::exists(runs / "fulgur_logs/version_0/checkpoints/last.ckpt"); }));
  CHECK(says(runs({"runs"}).out, "version_0  running"));
  fit.signal(SIGTERM);
  CHECK(fit.wait().exit_code == 75);
  CHECK(says(runs({"runs"}).out, "version_0  interrupted"));
  CHECK_FALSE(fs::exists(runs / "fulgur_logs/version_0/failed.json"));
}

TEST_CASE("runs: bad input has the documented exit codes") {
  const Runs runs;
  CHECK(runs({"runs", "nowhere"}).exit_code == 2);
  CHECK(runs({"runs", "a", "b"}).exit_code == 2);
  fs::create_directories(runs / "logs/version_0/checkpoints");
  write_text(runs / "logs/version_0/metrics.csv", "step,epoch,loss\n1,0,1\n");
  CHECK(runs({"runs", "logs", "--sort", "no_such"}).exit_code == 2);
  CHECK(runs({"runs", "logs", "--filter", "nonsense"}).exit_code == 2);
  write_text(runs / "logs/version_0/metrics.csv", "step,epoch,loss\n1,0,x\n");
  const Finished damaged = runs({"runs", "logs"});
  CHECK(damaged.exit_code == 3);
  CHECK(says(damaged.err, "line 2"));
  CHECK(says(damaged.out, "version_0  interrupted"));
  fs::create_directories(runs / "empty");
  const Finished empty = runs({"runs", "empty"});
  CHECK(empty.exit_code == 0);
  CHECK(says(empty.out, "no runs below empty"));
}

TEST_CASE("compare: two runs, by option, metric and time") {
  const Runs runs;
  REQUIRE(runs.fit().exit_code == 0);
  REQUIRE(runs.fit({"--optimizer.lr", "0.2"}).exit_code == 0);
  const Finished text = runs({"compare", "fulgur_logs/version_0", "fulgur_logs/version_1"});
  INFO(text.out << text.err);
  CHECK(text.exit_code == 0);
  CHECK(says(text.out, "optimizer.init_args.lr"));
  CHECK(says(text.out, "last val_loss"));
  const Finished json = runs({"compare", "fulgur_logs/version_0", "fulgur_logs/version_1", "--json"});
  REQUIRE(json.exit_code == 0);
  const Json all = Json::parse(json.out);
  CHECK(all["config"].size() == 1);
  CHECK(all["config"]["optimizer.init_args.lr"] == Json::array({"0.1", "0.2"}));
  CHECK(all["a"]["steps"] == 8);
  CHECK(runs({"compare", "fulgur_logs/version_0"}).exit_code == 2);
  CHECK(runs({"compare", "fulgur_logs/version_0", "fulgur_logs"}).exit_code == 2);
  write_text(runs / "fulgur_logs/version_1/metrics.csv", "step,epoch,loss\n1,0,x\n");
  CHECK(runs({"compare", "fulgur_logs/version_0", "fulgur_logs/version_1"}).exit_code == 3);
}

TEST_CASE("report: one page for several runs, without references to other files") {
  const Runs runs;
  REQUIRE(runs.fit().exit_code == 0);
  REQUIRE(runs.fit({"--optimizer.lr", "0.2"}).exit_code == 0);
  const Finished one = runs({"report", "fulgur_logs/version_0"});
  INFO(one.err);
  CHECK(one.exit_code == 0);
  CHECK(one.out == "report.html\n");
  CHECK(says(read_text(runs / "report.html"), "train_loss"));
  const Finished two =
      runs({"report", "fulgur_logs/version_0", "fulgur_logs/version_1", "--output", "p.html", "--quiet"});
  CHECK(two.exit_code == 0);
  CHECK(two.out.empty());
  const std::string page = read_text(runs / "p.html");
  CHECK(says(page, "Options that differ"));
  CHECK(says(page, "by-time"));
  CHECK_FALSE(says(page, "http://"));
  CHECK_FALSE(says(page, "https://"));
  CHECK(runs({"report"}).exit_code == 2);
  fs::create_directories(runs / "empty");
  CHECK(runs({"report", "empty"}).exit_code == 2);
  CHECK(runs({"report", "nowhere"}).exit_code == 2);
  // A folder stands for all its runs.
  REQUIRE(runs({"report", "fulgur_logs", "--output", "q.html"}).exit_code == 0);
  CHECK(read_text(runs / "q.html") == page);
  CHECK(runs({"report", "fulgur_logs/version_0", "--output", "fulgur_logs"}).exit_code == 2);
  write_text(runs / "fulgur_logs/version_1/metrics.csv", "step,epoch,loss\n1,0,x\n");
  CHECK(runs({"report", "fulgur_logs/version_1"}).exit_code == 3);
}

TEST_CASE("compare and report: a test or a predict run is no fit, and is finished if it has its result") {
  const Runs runs;
  REQUIRE(runs.fit().exit_code == 0);
  const std::vector<std::string> weights{"-c", "c.yaml", "--ckpt_path", "fulgur_logs/version_0/checkpoints/last.ckpt"};
  for (const std::string verb : {"test", "predict"}) {
    std::vector<std::string> arguments{verb};
    arguments.insert(arguments.end(), weights.begin(), weights.end());
    const Finished end = runs(arguments);
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
  }
  CHECK(read_text(runs / "fulgur_logs/version_1/config.yaml").starts_with("# verb: test\n"));
  const Finished text = runs({"compare", "fulgur_logs/version_1", "fulgur_logs/version_2"});
  INFO(text.out << text.err);
  REQUIRE(text.exit_code == 0);
  CHECK(says(text.out, "test, finished"));
  CHECK(says(text.out, "predict, finished"));
  CHECK_FALSE(says(text.out, "interrupted"));
  CHECK_FALSE(says(text.out, "epochs"));
  const Finished json = runs({"compare", "fulgur_logs/version_0", "fulgur_logs/version_1", "--json"});
  CHECK(Json::parse(json.out)["a"]["verb"] == "fit");
  CHECK(Json::parse(json.out)["b"]["verb"] == "test");
  CHECK(Json::parse(json.out)["b"]["status"] == "finished");
  REQUIRE(runs({"report", "fulgur_logs/version_1"}).exit_code == 0);
  CHECK(says(read_text(runs / "report.html"), "test, finished"));
  CHECK(runs({"watch", "fulgur_logs/version_1", "--quiet"}).out.starts_with("version_1 · test, finished · step "));
}

TEST_CASE("compare, report and watch say why a run has no metrics") {
  const Runs runs;
  REQUIRE(runs.fit({"--trainer.logger", "TensorBoardLogger"}).exit_code == 0);
  const std::string why = "the run has no log that can be read, only TensorBoardLogger: metrics are read from";
  CHECK(says(runs({"compare", "fulgur_logs/version_0", "fulgur_logs/version_0"}).out, "version_0: " + why));
  CHECK(says(runs({"watch", "fulgur_logs/version_0"}).out, why));
  REQUIRE(runs({"report", "fulgur_logs/version_0"}).exit_code == 0);
  CHECK(says(read_text(runs / "report.html"), why));
}

TEST_CASE("watch: one line for each row of another process's run, until it ends") {
  const Runs runs;
  Running fit({"fit", "-c", "c.yaml", "--trainer.max_epochs", "40"}, {.folder = runs.path()});
  REQUIRE(fit.wait_until([&] { return fs::exists(runs / "fulgur_logs/version_0/config.yaml"); }));
  const Finished watch = runs({"watch", "fulgur_logs/version_0", "--every", "0.05"});
  const Finished end = fit.wait();
  INFO(end.err << watch.out << watch.err);
  REQUIRE(end.exit_code == 0);
  CHECK(watch.exit_code == 0);
  CHECK(says(watch.out, "step 1  epoch 0  train_loss="));
  CHECK(says(watch.out, "step 160  epoch 39  "));
  CHECK(says(watch.out, "finished · epoch 40/40 · step 160"));
  CHECK_FALSE(says(watch.out, "\x1b"));
  const Finished quiet = runs({"watch", "fulgur_logs/version_0", "--quiet"});
  CHECK(quiet.exit_code == 0);
  CHECK(quiet.out.starts_with("version_0 · finished"));
  for (const auto& arguments : {std::vector<std::string>{"watch", "--quiet"}, {"watch", "fulgur_logs", "--quiet"}})
    CHECK(runs(arguments).out == quiet.out);
  CHECK(runs({"watch", "nowhere"}).exit_code == 2);
  CHECK(runs({"watch", "fulgur_logs/version_0", "--every", "0"}).exit_code == 2);
  const Finished not_a_number = runs({"watch", "fulgur_logs/version_0", "--every", "nan"});
  CHECK(not_a_number.exit_code == 2);
  CHECK(says(not_a_number.err, "--every must be a number of seconds"));
  CHECK(runs({"watch", "fulgur_logs/version_0"}).exit_code == 0);
}

}  // namespace history_verbs_test
