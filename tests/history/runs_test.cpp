#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text_table.h"
#include "fulgur/history/run.h"
#include "fulgur/history/runs_table.h"
#include "fulgur/history/sweep_state.h"
#include "history/written_run.h"
#include "support/expect_error.h"

using namespace fulgur::test;

namespace runs_test {

using namespace fulgur::history;
using Catch::Matchers::ContainsSubstring;

constexpr const char* kConfig = R"(trainer:
  max_epochs: 2
  callbacks:
    - class_path: EarlyStopping
      init_args: {monitor: val_loss, mode: min}
    - class_path: ModelCheckpoint
      init_args: {monitor: val_acc, mode: max}
model:
  class_path: MlpClassifier
  init_args: {hidden: [8, 4], dropout: 0.0}
optimizer: {class_path: SGD, init_args: {lr: LR}}
)";

std::string config_with(const std::string& lr) {
  std::string text = kConfig;
  return text.replace(text.find("LR"), 2, lr);
}

constexpr const char* kTable = "step,epoch,train_loss,val_acc\n5,0,2.0,\n10,0,,0.75\n15,1,1.0,\n20,1,,0.5\n";

struct Root : TemporaryFolder {
  WrittenRun run(const std::string& name) const { return WrittenRun(path() / name); }
};

std::vector<std::string> names_of(const std::vector<Run>& runs) {
  std::vector<std::string> names;
  for (const Run& run : runs) names.push_back(run.name);
  return names;
}

TEST_CASE("a finished run has its counts, its time and the best value of the checkpoints' monitor") {
  const Root root;
  const auto written = root.run("version_0");
  written.config(config_with("0.1")).csv(kTable).finished(2, 20, 12.5);
  written.checkpoint(0, 10, 6.0, "best.ckpt").checkpoint(1, 20, 12.0, "last.ckpt");
  const Run run = read_run(written.folder);
  CHECK(run.status == RunStatus::finished);
  CHECK(run.reason == "max_epochs");
  CHECK(run.epochs == 2);
  CHECK(run.steps == 20);
  CHECK(run.duration_s == 12.5);
  CHECK(run.steps_per_s() == 1.6);
  REQUIRE(run.monitor);
  CHECK(run.monitor->metric == "val_acc");
  CHECK_FALSE(run.monitor->smaller_is_better);
  CHECK(run.best() == std::pair<double, int64_t>(0.75, 10));
  REQUIRE(run.find_metric("train_loss"));
  CHECK(run.find_metric("train_loss")->last == 1);
  CHECK(run.find_metric("train_loss")->count == 2);
  REQUIRE(run.checkpoints.size() == 2);
  CHECK(run.checkpoints[0].is_best);
  CHECK(run.checkpoints[1].is_last);
  CHECK(run.checkpoints[1].fit_time_s == 12.0);
  CHECK(run.checkpoints[1].bytes == 1'500'000);
  CHECK(run.checkpoints[1].metrics == std::map<std::string, double>{{"val_loss", 0.5}});
  CHECK(run.system.front() == std::pair<std::string, std::string>("devices", "1 × cpu"));
}

TEST_CASE("a checkpoint in another folder is found by its link") {
  const Root root;
  const auto written = root.run("version_0"), other = root.run("other");
  other.checkpoint(1, 20, 12.0);
  std::filesystem::create_symlink(other.folder / "checkpoints/epoch=1-step=20.ckpt",
                                  written.folder / "checkpoints/last.ckpt");
  const Run run = read_run(written.folder);
  REQUIRE(run.checkpoints.size() == 1);
  CHECK(run.checkpoints[0].name == "../../other/checkpoints/epoch=1-step=20.ckpt");
  CHECK(run.checkpoints[0].is_last);
  CHECK_FALSE(run.checkpoints[0].is_best);
  CHECK(run.steps == 20);
  CHECK(run.epochs == 2);
  CHECK(run.duration_s == 12.0);
}

TEST_CASE("the status follows the lock, finished.json and failed.json") {
  const Root root;
  const auto written = root.run("version_0");
  written.csv(kTable).checkpoint(0, 10, 6.0);
  CHECK(read_run(written.folder).status == RunStatus::interrupted);
  CHECK(read_run(written.folder).steps == 20);
  CHECK(read_run(written.folder).duration_s == 6.0);
  CHECK(read_run(written.folder).epochs == 1);
  written.failed("[data] a file is missing");
  CHECK(read_run(written.folder).status == RunStatus::failed);
  CHECK(read_run(written.folder).reason == "[data] a file is missing");
  {
    const fulgur::RunLock lock(written.folder);
    CHECK(read_run(written.folder).status == RunStatus::running);
    CHECK(read_run(written.folder).duration_s >= 6.0);
  }
  written.finished(2, 20, 9);
  CHECK(read_run(written.folder).status == RunStatus::finished);
}

TEST_CASE("a last row that is not complete is an error only if the run has finished") {
  const Root root;
  const auto written = root.run("version_0");
  written.csv(std::string(kTable) + "25,2,0.");
  CHECK(read_run(written.folder).steps == 20);
  written.finished(2, 20, 9);
  CHECK_THROWS_AS(read_run(written.folder), fulgur::DataError);
  const Run run = read_run(written.folder, Damage::is_noted);
  CHECK_THAT(run.damage, ContainsSubstring("line 6"));
  CHECK(run.status == RunStatus::finished);
}

TEST_CASE("a run that was killed has the rows that CsvLogger had not written yet") {
  const Root root;
  const auto written = root.run("version_0");
  written.csv("step,epoch,loss\n1,0,4\n");
  written.jsonl("{\"step\":1,\"epoch\":0,\"loss\":4}\n{\"step\":2,\"epoch\":0,\"loss\":3}\n{\"step\":3,\"ep");
  CHECK(read_run(written.folder).steps == 2);
  CHECK(read_run(written.folder).find_metric("loss")->last == 3);
  // The last part of the run wrote no JSON lines.
  written.csv("step,epoch,loss\n1,0,4\n10,0,2\n");
  CHECK(read_run(written.folder).steps == 10);
  // With equal steps the table may lack the last row of that step.
  written.csv("step,epoch,loss\n2,0,3\n");
  written.jsonl("{\"step\":2,\"epoch\":0,\"loss\":3}\n{\"step\":2,\"epoch\":0,\"val_loss\":5}\n");
  CHECK(read_run(written.folder).find_metric("val_loss"));
}

TEST_CASE("a run that was killed while it was failing has the newest row of its logs") {
  const Root root;
  const auto written = root.run("version_0");
  written.csv("step,epoch,loss\n1,0,4\n")
      .jsonl("{\"step\":2,\"epoch\":0,\"loss\":3}\n")
      .failed("[data] a file is missing");
  CHECK(read_run(written.folder).steps == 1);
  write_text(written.folder / "run.lock", "pid 999999999\nhost elsewhere\n");
  CHECK(read_run(written.folder).steps == 2);
  CHECK(read_run(written.folder).status == RunStatus::failed);
}

TEST_CASE("a log without a whole row gives way to the other one") {
  const Root root;
  const auto written = root.run("version_0");
  written.csv("step,epoch,loss\n1,0,4\n");
  for (const char* lines : {"", "\n", "{\"step\":9,\"ep", "no row\n"}) {
    written.jsonl(lines);
    CHECK(read_run(written.folder).steps == 1);
  }
  std::filesystem::remove(written.folder / "metrics.jsonl");
  std::filesystem::create_directory(written.folder / "metrics.jsonl");
  CHECK(read_run(written.folder).steps == 1);
}

TEST_CASE("a damaged config is an error that names the place") {
  const Root root;
  const auto written = root.run("version_0");
  written.config("trainer: {a: [1\n");
  CHECK_THAT(message_of<fulgur::DataError>([&] { read_run(written.folder); }), ContainsSubstring("config.yaml"));
}

TEST_CASE("a folder of another verb than fit is finished if it has the values or the predictions") {
  const Root root;
  const auto test = root.run("version_0"), predict = root.run("version_1"), fit = root.run("version_2");
  test.config("# verb: test\ntrainer: {max_epochs: 2}\n");
  CHECK(read_run(test.folder).status_text() == "test, interrupted");
  test.csv("step,epoch,test_acc\n10,1,0.9\n");
  CHECK(read_run(test.folder).verb == "test");
  CHECK(read_run(test.folder).status == RunStatus::finished);
  CHECK(read_run(test.folder).status_text() == "test, finished");
  predict.config("# verb: predict\ntrainer: {max_epochs: 2}\nplugin: [a.so]\n");
  CHECK(read_run(predict.folder).status_text() == "predict, interrupted");
  predict.put("predictions.jsonl", "{}\n");
  CHECK(read_run(predict.folder).status_text() == "predict, finished");
  // Rows of a fit do not finish it.
  fit.config("# verb: fit\ntrainer: {max_epochs: 2}\n").csv(kTable);
  CHECK(read_run(fit.folder).status_text() == "interrupted");
}

TEST_CASE("a folder stands for the runs below it") {
  const Root root;
  for (const char* name : {"b/version_10", "b/version_9"}) root.run(name).csv("step,epoch\n");
  using Paths = std::vector<std::filesystem::path>;
  CHECK(runs_at(root.path()) == Paths{root / "b/version_9", root / "b/version_10"});
  CHECK(runs_at(root / "b/version_9") == Paths{root / "b/version_9"});
  std::filesystem::create_directories(root / "empty");
  CHECK_THAT(message_of<fulgur::ConfigError>([&] { runs_at(root / "empty"); }), ContainsSubstring("no run below"));
}

TEST_CASE("what is not a run folder is refused") {
  const Root root;
  write_text(root / "file", "");
  const auto refused = [&](const std::string& name) {
    return message_of<fulgur::ConfigError>([&] { read_run(root / name); });
  };
  CHECK_THAT(refused("none"), ContainsSubstring("does not exist"));
  CHECK_THAT(refused("file"), ContainsSubstring("is a file"));
  CHECK_THAT(refused(""), ContainsSubstring("has none of them"));
  CHECK_THROWS_AS(find_runs(root / "none"), fulgur::ConfigError);
}

TEST_CASE("runs are found below the root, in the order of their numbers, without those of other verbs") {
  const Root root;
  for (const char* name : {"b/version_10", "b/version_9", "a/version_0", ".hidden/version_0"})
    root.run(name).csv("step,epoch\n");
  std::filesystem::create_directories(root / "b/version_11");
  write_text(root / "b/version_11/config.yaml", "trainer: {}\n");
  std::filesystem::create_directory_symlink(root / "a", root / "link");
  write_text(root / "config.yaml", "a project's own\n");
  CHECK(names_of(read_runs(root.path())) == std::vector<std::string>{"a/version_0", "b/version_9", "b/version_10"});
  CHECK(names_of(read_runs(root / "a/version_0")) == std::vector<std::string>{"version_0"});
}

TEST_CASE("the best value of a trial is that of the metric of its sweep") {
  const Root root;
  const char* const rows = "step,epoch,val_loss,val_acc\n10,0,0.5,0.6\n20,1,0.7,0.9\n";
  root.run("sweeps/cv/trial_0000/fulgur_logs/version_0").csv(rows);
  root.run("sweeps/damaged/trial_0000/fulgur_logs/version_0").csv(rows);
  root.run("version_0").csv(rows);
  const SweepState state{.sweep = "method: grid\nmetric: val_acc\nmode: max\nspace: {optimizer.init_args.lr: [0.1]}\n",
                         .config = "trainer: {max_epochs: 9}\n",
                         .length = std::nullopt,
                         .trials = {TrialRecord{}}};
  write_text(root / "sweeps/cv/sweep.json", sweep_json(state));
  write_text(root / "sweeps/damaged/sweep.json", "{");
  const auto best_of = [&](const char* folder) {
    const auto runs = read_runs(root / folder);
    REQUIRE(runs.size() == 1);
    REQUIRE(runs[0].monitor);
    return std::pair(runs[0].monitor->metric, runs[0].best().value().first);
  };
  CHECK(best_of("sweeps/cv") == std::pair<std::string, double>("val_acc", 0.9));
  CHECK(best_of("sweeps/cv/trial_0000") == std::pair<std::string, double>("val_acc", 0.9));
  CHECK(best_of("version_0") == std::pair<std::string, double>("val_loss", 0.5));
  CHECK(best_of("sweeps/damaged") == std::pair<std::string, double>("val_loss", 0.5));
}

struct ThreeRuns : Root {
  ThreeRuns() {
    run("version_0").config(config_with("0.1")).csv(kTable).finished(2, 20, 12.5);
    run("version_1").config(config_with("0.01")).csv("step,epoch,val_acc\n10,0,0.9\n").failed("[loss] it is NaN");
    run("version_2").config(config_with("0.1")).csv("step,epoch,train_loss\n5,0,4\n");
  }
  std::vector<std::string> selected(const RunsQuery& query) const {
    return names_of(select_runs(read_runs(path()), query));
  }
};

TEST_CASE("runs are sorted by a key, and those without a value come last") {
  const ThreeRuns root;
  using Names = std::vector<std::string>;
  CHECK(root.selected({}) == Names{"version_0", "version_1", "version_2"});
  CHECK(root.selected({.sort = "-name"}) == Names{"version_2", "version_1", "version_0"});
  CHECK(root.selected({.sort = "steps"}) == Names{"version_2", "version_1", "version_0"});
  CHECK(root.selected({.sort = "-steps"}) == Names{"version_0", "version_1", "version_2"});
  CHECK(root.selected({.sort = "best"}) == Names{"version_1", "version_0", "version_2"});
  CHECK(root.selected({.sort = "-best"}) == Names{"version_0", "version_1", "version_2"});
  CHECK(root.selected({.sort = "train_loss"}) == Names{"version_0", "version_2", "version_1"});
  CHECK(root.selected({.sort = "lr"}) == Names{"version_1", "version_0", "version_2"});
  CHECK_THAT(message_of<fulgur::ConfigError>([&] { root.selected({.sort = "stps"}); }), ContainsSubstring("'steps'"));
}

TEST_CASE("a filter selects runs by their properties, metrics and options") {
  const ThreeRuns root;
  using Names = std::vector<std::string>;
  CHECK(root.selected({.filter = "status=finished"}) == Names{"version_0"});
  CHECK(root.selected({.filter = "status != finished"}) == Names{"version_1", "version_2"});
  CHECK(root.selected({.filter = "optimizer.init_args.lr=0.10"}) == Names{"version_0", "version_2"});
  CHECK(root.selected({.filter = "lr<0.1"}) == Names{"version_1"});
  CHECK(root.selected({.filter = "steps>=10 and val_acc>0.4"}) == Names{"version_0", "version_1"});
  CHECK(root.selected({.filter = "steps<=5"}) == Names{"version_2"});
  CHECK(root.selected({.filter = "reason~NaN"}) == Names{"version_1"});
  CHECK(root.selected({.filter = "steps>100"}).empty());
  for (const char* wrong : {"steps", "=3", "steps>", "steps>1 and ", "steps 3"})
    CHECK_THROWS_AS(root.selected({.filter = wrong}), fulgur::ConfigError);
  CHECK_THROWS_AS(root.selected({.filter = "no_such>1"}), fulgur::ConfigError);
  // The second condition is not one of the runs that the first one leaves.
  CHECK(root.selected({.filter = "steps<=5 and val_acc>0"}).empty());
}

TEST_CASE("a filter that no run can fulfil is an error with its reason") {
  const ThreeRuns root;
  const auto refused = [&](const std::string& filter) {
    return message_of<fulgur::ConfigError>([&] { root.selected({.filter = filter}); });
  };
  CHECK_THAT(refused("val_acc>>0.77"),
             ContainsSubstring("an operator is one of = != < <= > >= ~; got 'val_acc>>0.77'"));
  CHECK_THAT(refused("lr==0.1"), ContainsSubstring("an operator is one of"));
  CHECK_THAT(refused("val_acc=good"), ContainsSubstring("'val_acc' is a number, and is compared with a number"));
  CHECK_THAT(refused("val_acc>good"), ContainsSubstring("'val_acc' is a number"));
  CHECK_THAT(refused("monitor>3"), ContainsSubstring("'monitor' is a text in these runs"));
  CHECK_THAT(refused("status=done"),
             ContainsSubstring("the status of a run is one of running, finished, failed, interrupted"));
  CHECK_THAT(refused("status=finishd"), ContainsSubstring("did you mean 'finished'?"));
  CHECK_THAT(refused("status=finished or val_acc>0.7"), ContainsSubstring("joined by 'and', and not by 'or'"));
  // A text may contain the word, and `null` is no text.
  CHECK(root.selected({.filter = "reason~this or that"}).empty());
  CHECK(root.selected({.filter = "lr=null"}).empty());
}

TEST_CASE("a filter by components finds their classes") {
  const ThreeRuns root;
  root.run("version_3").config("model: {class_path: GPT, init_args: {}}\n").csv("step,epoch,train_loss\n5,0,4\n");
  using Names = std::vector<std::string>;
  const Names with_stopping{"version_0", "version_1", "version_2"};
  CHECK(root.selected({.filter = "callbacks~Stopp"}) == with_stopping);
  CHECK(root.selected({.filter = "callbacks=ModelCheckpoint"}) == with_stopping);
  CHECK(root.selected({.filter = "callbacks!=ModelCheckpoint"}).empty());
  CHECK(root.selected({.filter = "class_path~Early"}) == with_stopping);
  CHECK(root.selected({.filter = "class_path~GPT"}) == Names{"version_3"});
  CHECK(root.selected({.filter = "model!=MlpClassifier"}) == Names{"version_3"});
  CHECK(root.selected({.filter = "callbacks~Spike"}).empty());
}

TEST_CASE("the table shows the options that differ, and fits into the terminal") {
  const ThreeRuns root;
  const auto runs = read_runs(root.path());
  const std::string table = runs_table(runs, {});
  CHECK_THAT(table, ContainsSubstring("version_0  finished     2       20     val_acc=0.75  12.5 s  lr=0.1\n"));
  CHECK_THAT(table, ContainsSubstring("lr=0.01 · [loss] it is NaN\n"));
  CHECK_THAT(table, !ContainsSubstring("\x1b"));
  for (const int64_t columns : {1, 20, 40, 60, 80}) {
    const std::string narrow = runs_table(runs, {.columns = columns});
    for (size_t begin = 0, end = 0; (end = narrow.find('\n', begin)) != std::string::npos; begin = end + 1)
      CHECK(fulgur::columns_of(narrow.substr(begin, end - begin)) <= columns);
  }
  CHECK_THAT(runs_table(runs, {.columns = 100, .colour = true}), ContainsSubstring("\x1b[32mfinished\x1b[0m"));
}

TEST_CASE("the table shows a component that only some runs have by its class and its options without defaults") {
  const Root root;
  const std::string checkpoint = "{class_path: ModelCheckpoint, init_args: {monitor: val_acc, mode: max}}";
  root.run("version_0")
      .config("trainer: {enable_progress_bar: true, default_root_dir: a, callbacks: [" + checkpoint +
              "]}\noptimizer: {class_path: SGD, init_args: {lr: 0.1, momentum: 0.9, nesterov: false}}\n")
      .csv(kTable);
  root.run("version_1")
      .config(
          "trainer: {enable_progress_bar: false, default_root_dir: b, callbacks: [{class_path: EarlyStopping, "
          "init_args: {monitor: val_loss, min_delta: 0.5, strict: true, stopping_threshold: null}}, " +
          checkpoint + "]}\noptimizer: {class_path: OfAPlugIn, init_args: {size: 3}}\n")
      .csv(kTable);
  root.run("version_2").config("trainer: {callbacks: []}\noptimizer: null\n").csv(kTable);
  const auto runs = read_runs(root.path());
  const std::string two = runs_table({runs[0], runs[1]}, {});
  CAPTURE(two);
  CHECK_THAT(two, ContainsSubstring("  optimizer=SGD(lr=0.1, momentum=0.9)\n"));
  CHECK_THAT(two, ContainsSubstring("  optimizer=OfAPlugIn(size=3) EarlyStopping(monitor=val_loss, min_delta=0.5)\n"));
  CHECK_THAT(two, !ContainsSubstring("ModelCheckpoint"));
  CHECK_THAT(two, !ContainsSubstring("enable"));
  CHECK_THAT(two, !ContainsSubstring("root_dir"));
  const std::string all = runs_table(runs, {});
  CAPTURE(all);
  CHECK_THAT(all, ContainsSubstring("ModelCheckpoint(monitor=val_acc, mode=max)"));
  CHECK_THAT(all, ContainsSubstring("  optimizer=null\n"));
  CHECK_THAT(all, !ContainsSubstring("callbacks=[]"));
}

TEST_CASE("the table shows components in a list inside another component by their classes") {
  const Root root;
  const std::string crop = "{class_path: CropOfAPlugIn, init_args: {size: 32, padding: 4}}";
  const std::string flip = "{class_path: FlipOfAPlugIn, init_args: {p: 0.5}}";
  const std::string within = "{class_path: SomeOfAPlugIn, init_args: {transforms: [" + flip + "]}}";
  const auto data = [](const std::string& name, const std::string& transforms) {
    return "trainer: {max_epochs: 1}\ndata: {class_path: " + name + ", init_args: {transforms: [" + transforms +
           "], batch_size: 8}}\n";
  };
  root.run("version_0").config(data("DataOfAPlugIn", crop)).csv(kTable);
  root.run("version_1").config(data("DataOfAPlugIn", crop + ", " + within)).csv(kTable);
  root.run("version_2").config(data("OtherOfAPlugIn", crop + ", " + within + ", " + flip)).csv(kTable);
  const auto runs = read_runs(root.path());
  // One more transform of the same data module.
  const std::string two = runs_table({runs[0], runs[1]}, {});
  CAPTURE(two);
  CHECK_THAT(two, ContainsSubstring("  SomeOfAPlugIn\n"));
  CHECK_THAT(two, !ContainsSubstring("p=0.5"));
  const std::string all = runs_table(runs, {});
  CAPTURE(all);
  CHECK_THAT(all, ContainsSubstring("  data=DataOfAPlugIn(transforms=[CropOfAPlugIn], batch_size=8)\n"));
  CHECK_THAT(all, ContainsSubstring("data=DataOfAPlugIn(transforms=[CropOfAPlugIn, SomeOfAPlugIn], batch_size=8)\n"));
  CHECK_THAT(all, ContainsSubstring("data=OtherOfAPlugIn(transforms=[CropOfAPlugIn, SomeOfAPlugIn, FlipOfAPlugIn], "
                                    "batch_size=8)\n"));
}

TEST_CASE("a run that was killed before it wrote its config makes no difference") {
  const Root root;
  root.run("version_0").config(config_with("0.1")).csv(kTable);
  root.run("version_1").config(config_with("0.2")).csv(kTable);
  root.run("version_2").failed("[loss] it is NaN");
  const auto runs = read_runs(root.path());
  REQUIRE(runs.size() == 3);
  const std::string text = runs_table(runs, {});
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("lr=0.2\n"));
  CHECK_THAT(text, ContainsSubstring("no config · [loss] it is NaN\n"));
  CHECK_THAT(text, !ContainsSubstring("MlpClassifier"));
  CHECK_THAT(text, !ContainsSubstring("max_epochs="));
  const auto json = nlohmann::json::parse(runs_json(runs));
  CHECK(json[0]["differs_in"].size() == 1);
  CHECK(json[2]["differs_in"]["optimizer.init_args.lr"].is_null());
}

TEST_CASE("control characters of a run's files do not reach the terminal") {
  const Root root;
  root.run("version_0").csv(kTable).failed("\\u001b[2J\\u0007");
  CHECK_THAT(runs_table(read_runs(root.path()), {}), ContainsSubstring("\\x1b[2J\\x07"));
}

TEST_CASE("JSON has all metrics, and numbers that are not finite as texts") {
  const ThreeRuns root;
  root.run("version_3").csv("step,epoch,train_loss\n5,0,nan\n");
  const auto json = nlohmann::json::parse(runs_json(read_runs(root.path())));
  REQUIRE(json.size() == 4);
  CHECK(json[0]["status"] == "finished");
  CHECK(json[0]["best"]["value"] == 0.75);
  CHECK(json[0]["best"]["step"] == 10);
  CHECK(json[0]["metrics"]["train_loss"]["last"] == 1.0);
  CHECK(json[0]["differs_in"]["optimizer.init_args.lr"] == "0.1");
  CHECK(json[1]["reason"] == "[loss] it is NaN");
  CHECK(json[3]["metrics"]["train_loss"]["last"] == "nan");
  CHECK(json[3]["metrics"]["train_loss"]["min"].is_null());
}

}  // namespace runs_test
