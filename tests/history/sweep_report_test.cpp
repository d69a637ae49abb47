// The state of a sweep in its file, what its run folders say, its table and its page.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/sweep_report.h"
#include "fulgur/history/sweep_schedule.h"
#include "fulgur/history/sweep_state.h"
#include "history/sweep_plan.h"
#include "history/written_run.h"

namespace sweep_report_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::history;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

constexpr const char* kSweep = "method: grid\nmetric: val_loss\nspace:\n  optimizer.init_args.lr: [0.1, 0.2, 0.3]\n";

TrialRecord completed(double value, double seconds = 2) {
  TrialRecord record;
  record.status = TrialStatus::completed;
  record.value = value;
  record.epochs = 4;
  record.steps = 40;
  record.seconds = seconds;
  return record;
}

TrialRecord failed(const std::string& reason) {
  TrialRecord record;
  record.status = TrialStatus::failed;
  record.reason = reason;
  return record;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("sweep state: written and read back, with numbers to the bit") {
  SweepState state{
      kSweep, "trainer: {max_epochs: 9}\n", std::nullopt, {completed(1.0 / 3), failed("a \"b\"\n\x1b"), {}}};
  state.trials[0].at_rungs = {0.1, std::nullopt};
  state.trials[0].target = 2;
  state.threads = 3;
  state.trials[0].run = "trial_0000/fulgur_logs/version_0";
  const SweepState read = parse_sweep_json(sweep_json(state), "sweep.json");
  CHECK(sweep_json(read) == sweep_json(state));
  CHECK(read.trials[0].value == 1.0 / 3);
  CHECK(read.trials[0].at_rungs == std::vector<std::optional<double>>{0.1, std::nullopt});
  CHECK(read.trials[0].target == 2);
  CHECK(read.threads == 3);
  CHECK(read.trials[1].reason == state.trials[1].reason);
  CHECK(read.trials[2].status == TrialStatus::pending);
}

TEST_CASE("sweep state: a damaged file is an error that names it") {
  const std::string good = sweep_json({kSweep, "", std::nullopt, {{}, {}, {}}});
  CHECK_NOTHROW(parse_sweep_json(good, "x/sweep.json"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), good.substr(0, good.size() / 2), changed("\"pending\"", "\"no\""),
        changed("\"version\": 1", "\"version\": 2"), changed("\"target\": 0", "\"target\": -1"),
        changed("method: grid", "method: gird"), changed("0.1, 0.2, 0.3", "0.1, 0.2")}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_sweep_json(bad, "x/sweep.json"), DataError);
    CHECK_THROWS_WITH(parse_sweep_json(bad, "x/sweep.json"), ContainsSubstring("x/sweep.json is damaged"));
  }
}

TEST_CASE("sweep state: what differs from the sweep of the folder") {
  const SweepState saved{kSweep, "trainer: {max_epochs: 9}\n", 9, {}};
  SweepState given = saved;
  CHECK(sweep_differences(saved, given).empty());
  given.sweep = std::string(kSweep) + "seeds: 2\n";
  given.config = "trainer: {max_epochs: 8}\n";
  const std::string lines = sweep_differences(saved, given);
  CHECK_THAT(lines, ContainsSubstring("sweep: seeds: not set in the sweep's folder, 2 now"));
  CHECK_THAT(lines, ContainsSubstring("config: trainer.max_epochs: 9 in the sweep's folder, 8 now"));
  given = saved;
  given.length = 8;
  CHECK_THAT(sweep_differences(saved, given), ContainsSubstring("9 in the sweep's folder, 8 now"));
}

TEST_CASE("sweep state: the metric, its mode and value may change, unless halving has compared trials by them") {
  SweepState saved{kSweep, "a: {x: 1}\n", std::nullopt, {{}, {}, {}}};
  SweepState given = saved;
  CHECK_FALSE(is_ranked_otherwise(saved, given));
  given.sweep = std::string(kSweep) + "mode: min\n";  // the default
  CHECK_FALSE(is_ranked_otherwise(saved, given));
  for (const std::string& change : {std::string("mode: max\n"), std::string("value: last\n")}) {
    given.sweep = kSweep + change;
    CHECK(sweep_differences(saved, given).empty());
    CHECK(is_ranked_otherwise(saved, given));
  }
  saved.trials[0].at_rungs = {0.5};
  CHECK_THAT(sweep_differences(saved, given),
             ContainsSubstring("sweep: value: not set in the sweep's folder, last now"));
}

TEST_CASE("sweep: ranked again, trials that lacked the former metric are completed, or continue at their rung") {
  const TemporaryFolder folder;
  WrittenRun(folder / "trial_0000/fulgur_logs/version_0").csv("step,epoch,val_loss\n5,0,3\n").finished(1, 5, 1);
  WrittenRun(folder / "trial_0001/fulgur_logs/version_0").csv("step,epoch,acc\n5,0,3\n").finished(1, 5, 1);
  WrittenRun(folder / "trial_0002/fulgur_logs/version_0").csv("step,epoch,val_loss\n5,0,3\n").checkpoint(0, 5, 1);
  std::vector<TrialRecord> trials(3, failed("the metric 'val_los' was not logged"));
  for (size_t i = 0; i < 3; ++i) {
    trials[i].lacks_metric = true;
    trials[i].run = cat("trial_000", i, "/fulgur_logs/version_0");
  }
  CHECK(trial_without_metric(trials) == 0u);
  rank_again(plan_of_text(kSweep), folder.path(), trials);
  CHECK(trials[0].status == TrialStatus::completed);
  CHECK(trials[0].value == 3.0);
  CHECK(trials[1].status == TrialStatus::failed);
  CHECK(trials[1].lacks_metric);
  CHECK_THAT(trials[1].reason, ContainsSubstring("'val_loss' was not logged; the run logged acc"));
  CHECK_FALSE(trial_without_metric(trials));  // a trial has a value: the name is right
  CHECK(trials[2].status == TrialStatus::failed);
  rank_again(plan_of_text(cat(kSweep, "halving: {min_epochs: 1}\n"), 9), folder.path(), trials);
  CHECK(trials[2].status == TrialStatus::interrupted);
  CHECK(trials[2].reason.empty());
  // It is part of the file.
  const SweepState state{kSweep, "", std::nullopt, trials};
  CHECK(parse_sweep_json(sweep_json(state), "sweep.json").trials[1].lacks_metric);
}

TEST_CASE("sweep state: keys of a grid in another order are another sweep, and of a random one the same") {
  const std::string lr = "  optimizer.lr: [0.1, 0.2]\n", hidden = "  model.hidden: [4, 8]\n";
  const std::string grid = "method: grid\nmetric: m\nspace:\n",
                    random = "method: random\ntrials: 3\nmetric: m\nspace:\n";
  const SweepState saved{grid + lr + hidden, "a: {x: 1, y: 2}\n", std::nullopt, {}};
  SweepState given = saved;
  given.sweep = grid + hidden + lr;
  const std::string lines = sweep_differences(saved, given);
  CHECK_THAT(lines, ContainsSubstring("trial 1 is lr=0.1 hidden=8 in the sweep's folder, hidden=4 lr=0.2 now"));
  CHECK_THAT(lines, ContainsSubstring("the order of the keys in space"));
  given = saved;
  given.sweep = "metric: m\nmethod: grid\nspace:\n" + lr + hidden;
  given.config = "a: {y: 2, x: 1}\n";
  CHECK(sweep_differences(saved, given).empty());
  CHECK(sweep_differences({random + lr + hidden, "", std::nullopt, {}}, {random + hidden + lr, "", std::nullopt, {}})
            .empty());
}

TEST_CASE("sweep state: values of another type are another sweep") {
  const auto differences = [](const std::string& before, const std::string& now) {
    const auto state = [](const std::string& value) {
      return SweepState{cat("method: grid\nmetric: m\nspace: {a.x: [3, ", value, "]}\n"), "", std::nullopt, {}};
    };
    const auto config = [](const std::string& value) {
      return SweepState{kSweep, cat("a: {x: ", value, "}\n"), std::nullopt, {}};
    };
    const std::string in_space = sweep_differences(state(before), state(now));
    const std::string in_config = sweep_differences(config(before), config(now));
    CHECK(in_space.empty() == in_config.empty());
    return in_config;
  };
  CHECK(differences("1", "'1'") == "\nconfig: a.x: 1 in the sweep's folder, \"1\" now");
  CHECK(differences("null", "'null'") == "\nconfig: a.x: null in the sweep's folder, \"null\" now");
  CHECK(differences("[1, 2]", "['1, 2']") == "\nconfig: a.x: [1, 2] in the sweep's folder, [\"1, 2\"] now");
  CHECK(differences("word", "'word'").empty());
}

TEST_CASE("sweep: what the run folder of a trial says") {
  const TemporaryFolder folder;
  const SweepSpec spec = spec_of(kSweep);
  TrialRecord record;
  CHECK(read_trial(spec, folder.path(), 0, record) == TrialStatus::pending);
  const WrittenRun run(folder / "trial_0000/fulgur_logs/version_0");
  run.csv("step,epoch,val_loss\n5,0,3\n10,1,1\n15,2,2\n").checkpoint(2, 15, 1.5, "last.ckpt");
  CHECK(read_trial(spec, folder.path(), 0, record) == TrialStatus::interrupted);
  CHECK(record.value == 1.0);
  CHECK(record.epochs == 3);
  CHECK(record.steps == 15);
  CHECK(record.run == "trial_0000/fulgur_logs/version_0");
  run.finished(3, 15, 2.5);
  CHECK(read_trial(spec, folder.path(), 0, record) == TrialStatus::completed);
  CHECK(record.seconds == 2.5);
  CHECK(read_trial(spec_of(std::string(kSweep) + "mode: max\n"), folder.path(), 0, record) == TrialStatus::completed);
  CHECK(record.value == 3.0);
  CHECK(read_trial(spec_of(std::string(kSweep) + "value: last\n"), folder.path(), 0, record) == TrialStatus::completed);
  CHECK(record.value == 2.0);
  // The newest run counts.
  WrittenRun(folder / "trial_0000/fulgur_logs/version_1").failed("[loss] it is NaN");
  CHECK(read_trial(spec, folder.path(), 0, record) == TrialStatus::failed);
  CHECK(record.reason == "[loss] it is NaN");
}

TEST_CASE("sweep: collecting keeps a failure with its reason, unless the trial has done more since") {
  const TemporaryFolder folder;
  const SweepPlan plan = plan_of_text(kSweep);
  // It failed before it had a run folder.
  TrialRecord record = failed("exit code 2: no data");
  CHECK(collected_trial(plan, folder.path(), 0, record).status == TrialStatus::failed);
  const WrittenRun run(folder / "trial_0000/fulgur_logs/version_0");
  run.csv("step,epoch,val_loss\n5,0,3\n").checkpoint(0, 5, 1.5, "last.ckpt");
  record.run = "trial_0000/fulgur_logs/version_0";
  const TrialRecord kept = collected_trial(plan, folder.path(), 0, record);
  CHECK(kept.status == TrialStatus::failed);
  CHECK(kept.reason == "exit code 2: no data");
  run.failed("[loss] it is NaN");
  CHECK(collected_trial(plan, folder.path(), 0, record).reason == "exit code 2: no data");
  // A run folder that is newer than the failure.
  record.run.clear();
  CHECK(collected_trial(plan, folder.path(), 0, record).reason == "[loss] it is NaN");
  fs::remove(run.folder / "failed.json");
  run.finished(1, 5, 2.5);
  record.run = "trial_0000/fulgur_logs/version_0";
  const TrialRecord done = collected_trial(plan, folder.path(), 0, record);
  CHECK(done.status == TrialStatus::completed);
  CHECK(done.reason.empty());
  CHECK(done.value == 3.0);
  // With halving, only a finished run is not what the sweep has recorded.
  const SweepPlan halving = plan_of_text(cat(kSweep, "halving: {min_epochs: 1}\n"), 9);
  TrialRecord paused;
  paused.status = TrialStatus::paused;
  CHECK(collected_trial(halving, folder.path(), 1, paused).status == TrialStatus::paused);
  CHECK(collected_trial(halving, folder.path(), 0, paused).status == TrialStatus::completed);
}

TEST_CASE("sweep: a finished run without a value of the metric has failed, and says what was logged") {
  const TemporaryFolder folder;
  const SweepSpec spec = spec_of(kSweep);
  const WrittenRun run(folder / "trial_0002/fulgur_logs/version_0");
  run.csv("step,epoch,val_los\n5,0,3\n").finished(1, 5, 1);
  TrialRecord record;
  CHECK(read_trial(spec, folder.path(), 2, record) == TrialStatus::failed);
  CHECK_THAT(record.reason, ContainsSubstring("'val_loss' was not logged; the run logged val_los"));
  CHECK_THAT(record.reason, ContainsSubstring("did you mean 'val_los'?"));
  run.csv("step,epoch,val_loss\n5,0,nan\n");
  CHECK(read_trial(spec, folder.path(), 2, record) == TrialStatus::failed);
  CHECK_THAT(record.reason, ContainsSubstring("is NaN or infinite"));
}

TEST_CASE("sweep table: complete trials, best first, then the others; why a trial failed") {
  const SweepPlan plan = plan_of_text(kSweep);
  const std::vector<TrialRecord> trials{completed(0.5), failed("exit code 1: no"), completed(0.25)};
  CHECK(sweep_table(plan, trials, {}) ==
        "trial  state      lr   val_loss  epochs  time\n"
        "2      completed  0.3  0.25      4       2.00 s\n"
        "0      completed  0.1  0.5       4       2.00 s\n"
        "1      failed     0.2  -         0       -       exit code 1: no\n");
  CHECK(best_trial(plan, trials) == 2u);
  CHECK_FALSE(best_trial(plan, {failed("x"), failed("x"), {}}));
  const std::string narrow = sweep_table(plan, trials, {.columns = 20, .colour = false});
  CHECK(narrow.starts_with("trial  state      l…\n"));
}

TEST_CASE("sweep table: a trial that was stopped early is never the best one") {
  const SweepPlan plan = plan_of_text(kSweep);
  TrialRecord stopped = completed(0.1);
  stopped.status = TrialStatus::stopped;
  const std::vector<TrialRecord> trials{stopped, completed(0.5), {}};
  CHECK(best_trial(plan, trials) == 1u);
  const std::string table = sweep_table(plan, trials, {});
  CHECK(table.find("completed") < table.find("stopped"));
  CHECK(table.find("stopped") < table.find("pending"));
}

TEST_CASE("sweep table: mean and standard deviation over seeds") {
  const SweepPlan plan = plan_of_text("method: grid\nmetric: m\nmode: max\nspace: {a: [1, 2]}\nseeds: 3");
  const std::vector<TrialRecord> trials{completed(1),   completed(2),   completed(3),
                                        completed(2.5), completed(2.5), failed("exit code 1")};
  const std::string table = sweep_table(plan, trials, {});
  CHECK_THAT(table, ContainsSubstring("point  state"));
  CHECK_THAT(table, ContainsSubstring("2 ± 1 "));
  CHECK_THAT(table, ContainsSubstring("2 completed, 1 failed"));
  CHECK_THAT(table, ContainsSubstring("2.5 ± 0 "));
  // A point that is not complete is not the best one.
  CHECK(best_trial(plan, trials) == 0u);
}

TEST_CASE("sweep table: mean and standard deviation over folds, and the best config is that of no fold") {
  const SweepPlan plan = plan_of_text("method: grid\nmetric: m\nmode: max\nspace: {a: [1, 2]}\nfolds: 3");
  const std::vector<TrialRecord> trials{completed(1), completed(2),  completed(3),
                                        completed(9), completed(-9), completed(0)};
  const std::string table = sweep_table(plan, trials, {});
  CHECK_THAT(table, ContainsSubstring("2 ± 1 "));
  CHECK_THAT(table, ContainsSubstring("0 ± 9 "));
  // Not the point with the luckiest fold.
  CHECK(best_trial(plan, trials) == 0u);
  CHECK_THAT(sweep_csv(plan, trials),
             ContainsSubstring("trial,point,seed,fold,state,") && ContainsSubstring("\n2,0,,3,completed,"));
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  test::write_text(folder / "run/config.yaml", "data: {class_path: D, init_args: {fold: 1/3, path: x}}\n");
  TrialRecord trial = completed(1);
  trial.run = "run";
  CHECK_FALSE(has(*trial_config(folder.path(), trial, "{seed_everything: 1}", &plan.trials[0]), "fold"));
  CHECK(has(*trial_config(folder.path(), trial, "{seed_everything: 1}", &plan.trials[0]), "path: x"));
  CHECK(has(*trial_config(folder.path(), trial, "{seed_everything: 1}"), "fold: 1/3"));
}

TEST_CASE("sweep: the config of no fold has no value that a link took from the fold") {
  const SweepPlan plan = plan_of_text("method: grid\nmetric: m\nspace: {model.init_args.depth: [2]}\nfolds: 3");
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  test::write_text(folder / "run/config.yaml", R"(
model:
  class_path: M
  init_args: {mean: [0.5], part: {std: [2.0], other: 7}, task: regression, depth: 2, width: 3}
data: {class_path: D, init_args: {fold: 1/3}}
link:
  model.init_args.mean: data.mean
  model.part.std: data.std
  model.init_args.task: data.task
  model.init_args.depth: data.depth?
  model.init_args.absent: data.absent?
)");
  TrialRecord trial = completed(1);
  trial.run = "run";
  const std::string shared = "model: {class_path: M, init_args: {task: regression}}\n";
  const std::string config = trial_config(folder.path(), trial, shared, &plan.trials[0]).value();
  INFO(config);
  CHECK_FALSE(has(config, "mean: ["));
  CHECK_FALSE(has(config, "std: ["));
  CHECK(has(config, "mean: data.mean"));
  CHECK(has(config, "other: 7"));
  CHECK(has(config, "width: 3"));
  // What the user has written, in the config or as an axis, is no value of the fold.
  CHECK(has(config, "task: regression"));
  CHECK(has(config, "depth: 2"));
  // The config of a run without folds is that of the run.
  CHECK(has(*trial_config(folder.path(), trial, shared), "mean: ["));
}

TEST_CASE("sweep.csv: one row per trial with all digits, and the value at each rung") {
  const SweepPlan plan =
      plan_of_text("method: grid\nmetric: m\nspace: {a.b: [[1, 2], x]}\nseeds: [7]\nhalving: {min_epochs: 1}", 9);
  std::vector<TrialRecord> trials{completed(1.0 / 3), failed("a, b")};
  trials[0].at_rungs = {0.5, 0.25};
  trials[0].run = "trial_0000/fulgur_logs/version_0";
  CHECK(sweep_csv(plan, trials) ==
        "trial,point,seed,state,a.b,m,m@1,m@3,epochs,steps,seconds,run,reason\n"
        "0,0,7,completed,\"[1, 2]\",0.3333333333333333,0.5,0.25,4,40,2.0,trial_0000/fulgur_logs/version_0,\n"
        "1,1,7,failed,x,,,,0,0,,,\"a, b\"\n");
}

TEST_CASE("sweep page: table, curves, one chart per option, and the best config; names are escaped") {
  const TemporaryFolder folder;
  const SweepPlan plan = plan_of_text(
      "method: random\ntrials: 2\nmetric: '<m>'\nspace:\n  x.lr: {min: 0.001, max: 1, scale: log}\n  x.kind: [a, "
      "'<b>']\n");
  std::vector<TrialRecord> trials{completed(0.5), completed(0.25)};
  for (size_t i = 0; i < 2; ++i) {
    trials[i].run = cat("trial_000", i, "/fulgur_logs/version_0");
    WrittenRun(folder / trials[i].run)
        .csv("step,epoch,<m>\n5,0,3\n10,1,0.5\n")
        .config(cat("trainer: {max_epochs: 2, default_root_dir: here, stop_after: 1ep}\nmodel: model_", i, "\n"));
  }
  const std::string page =
      sweep_page(plan, trials, folder.path(), "model: best_model\n", "trainer fit --config d/best.yaml");
  CHECK(has(page, "data-name=\"trial 0\""));
  CHECK(has(page, "data-name=\"trial 1\""));
  CHECK(has(page, "log10 of lr"));
  CHECK(has(page, "&lt;m&gt; by kind"));
  CHECK(has(page, "1: &lt;b&gt;"));
  CHECK(has(page, "r=\"4\""));
  CHECK(has(page, "trainer fit --config d/best.yaml"));
  CHECK(has(page, "model: best_model"));
  CHECK_FALSE(has(page, "model_0"));
  CHECK_FALSE(has(page, "<m>"));
  CHECK_FALSE(has(page, "http://"));
  const std::string config = trial_config(folder.path(), trials[1], "trainer: {max_epochs: 1}\n").value();
  CHECK(has(config, "max_epochs: 2"));
  CHECK_FALSE(has(config, "default_root_dir"));
  CHECK_FALSE(has(config, "stop_after"));
  // What the user had set, without what the sweep has set.
  CHECK(has(*trial_config(folder.path(), trials[1], "trainer: {default_root_dir: there}\n"),
            "default_root_dir: there\n"));
  CHECK_FALSE(trial_config(folder.path(), failed("no run"), "").has_value());
  // A run that cannot be read leaves out its curve, and not the page.
  write_text(folder / trials[0].run / "metrics.csv", "step,epoch,<m>\n5,0,x\n");
  const std::string damaged = sweep_page(plan, trials, folder.path(), std::nullopt, "c");
  CHECK(has(damaged, "1 run cannot be read"));
  CHECK(has(damaged, "data-name=\"trial 1\""));
  CHECK(has(damaged, "The config of its run cannot be read"));
  CHECK_FALSE(has(damaged, "best.yaml"));
  CHECK(has(sweep_page(plan, {{}, {}}, folder.path(), std::nullopt, "c"), "No point is complete yet"));
}

}  // namespace sweep_report_test
