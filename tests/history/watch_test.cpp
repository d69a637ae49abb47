#include "fulgur/history/watch.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <optional>
#include <thread>

#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text_table.h"
#include "history/written_run.h"
#include "support/expect_error.h"

using namespace fulgur::test;

namespace watch_test {

using Catch::Matchers::ContainsSubstring;
using fulgur::history::RunWatcher;
using Lines = std::vector<std::string>;

void append(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

TEST_CASE("each row is one line, once, while the run trains and when it has ended") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.config("trainer: {max_epochs: 2}\n");
  auto lock = std::make_unique<fulgur::RunLock>(run.folder);
  RunWatcher watcher(run.folder);
  CHECK(watcher.poll());
  CHECK(watcher.new_lines().empty());
  run.jsonl("{\"step\":5,\"epoch\":0,\"train_loss\":2.0}\n{\"step\":10,\"ep");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 5  epoch 0  train_loss=2"});
  CHECK_THAT(watcher.summary(), ContainsSubstring("version_0 · running · epoch 0/2 · step 5"));
  append(run.folder / "metrics.jsonl", "och\":0,\"val_loss\":1.5}\n");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 10  epoch 0  val_loss=1.5"});
  append(run.folder / "metrics.jsonl", "{\"step\":15,\"epoch\":1,\"train_loss\":1.0}\n");
  run.finished(2, 20, 12.5);
  lock.reset();
  CHECK_FALSE(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 15  epoch 1  train_loss=1"});
  CHECK_THAT(watcher.summary(), ContainsSubstring("finished · epoch 2/2 · step 20 · 12.5 s"));
  CHECK_THAT(watcher.summary(), ContainsSubstring("best val_loss=1.5 at step 10 · max_epochs"));
}

TEST_CASE("rows of a table that gets a column are not shown twice, and a resumed run's are shown again") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  const fulgur::RunLock lock(run.folder);
  run.csv("step,epoch,a\n1,0,1\n2,0,2\n");
  RunWatcher watcher(run.folder);
  CHECK(watcher.poll());
  CHECK(watcher.new_lines().size() == 2);
  const auto replace = [&](const std::string& text) {
    write_text(run.folder / "new", text);
    std::filesystem::rename(run.folder / "new", run.folder / "metrics.csv");
  };
  replace("step,epoch,a,b\n1,0,1,\n2,0,2,\n3,0,,7\n");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 3  epoch 0  b=7"});
  CHECK_THAT(watcher.screen({.columns = 60}, 10), ContainsSubstring("a  2  ▁█\nb  7  ▅\n"));
  replace("step,epoch,a\n1,0,1\n");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"the run was resumed; its log ends at step 1"});
  append(run.folder / "metrics.csv", "2,0,9\n");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 2  epoch 0  a=9"});
}

TEST_CASE("on a narrow terminal the state of the run takes several lines, and none is cut") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.config("trainer: {max_epochs: 90, max_steps: 900000}\n");
  const fulgur::RunLock lock(run.folder);
  run.jsonl("{\"step\":450000,\"epoch\":45,\"loss\":1.0}\n");
  run.checkpoint(44, 449000, 3600);
  RunWatcher watcher(run.folder);
  CHECK(watcher.poll());
  const std::string wide = watcher.screen({.columns = 200}, 10), narrow = watcher.screen({.columns = 40}, 10);
  INFO(wide << narrow);
  CHECK(wide.starts_with("version_0 · running · epoch 45/90 · step 450000/900000 · 1:00:"));
  CHECK(narrow.starts_with("version_0 · running · epoch 45/90\nstep 450000/900000 · 1:00:"));
  CHECK_FALSE(ContainsSubstring("…").match(narrow));
  CHECK_THAT(narrow, ContainsSubstring(" left\nloss  1  "));
  CHECK(std::count(narrow.begin(), narrow.end(), '\n') > 2);
  for (const int64_t rows : {1, 2, 3}) {
    const std::string low = watcher.screen({.columns = 40}, rows);
    CHECK(std::count(low.begin(), low.end(), '\n') == rows);
  }
}

TEST_CASE("of a folder with runs, the newest is watched, or the one that trains") {
  const TemporaryFolder folder;
  using fulgur::history::newest_run;
  std::filesystem::create_directories(folder / "logs");
  CHECK_THROWS_WITH(newest_run(folder / "logs"), ContainsSubstring("there is no run below"));
  const auto now = std::filesystem::file_time_type::clock::now();
  const auto began = [&](const char* name, int hours_ago) {
    WrittenRun run(folder / "logs" / name);
    run.config("trainer: {max_epochs: 2}\n");
    std::filesystem::last_write_time(run.folder / "config.yaml", now - std::chrono::hours(hours_ago));
    return run;
  };
  const WrittenRun oldest = began("version_9", 3), newest = began("a/version_2", 1), between = began("version_10", 2);
  CHECK(newest_run(folder / "logs") == newest.folder);
  CHECK(newest_run(between.folder) == between.folder);
  const fulgur::RunLock lock(oldest.folder);
  CHECK(newest_run(folder / "logs") == oldest.folder);
}

TEST_CASE("a run that begins again shows nothing of the rows that are gone") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.config("trainer: {max_epochs: 9}\n");
  const fulgur::RunLock lock(run.folder);
  run.jsonl("{\"step\":50,\"epoch\":4,\"loss\":1.0}\n{\"step\":60,\"epoch\":5,\"loss\":0.5}\n");
  RunWatcher watcher(run.folder);
  CHECK(watcher.poll());
  CHECK(watcher.new_lines().size() == 2);
  run.jsonl("");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"the run has begun again; its log has no rows"});
  CHECK_THAT(watcher.summary(), ContainsSubstring("epoch 0/9 · step 0 "));
  CHECK_THAT(watcher.screen({.columns = 60}, 10), !ContainsSubstring("loss"));
  append(run.folder / "metrics.jsonl", "{\"step\":5,\"epoch\":0,\"acc\":0.25}\n");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 5  epoch 0  acc=0.25"});
  CHECK_THAT(watcher.summary(), ContainsSubstring("epoch 0/9 · step 5 "));
  CHECK_THAT(watcher.screen({.columns = 60}, 10), ContainsSubstring("acc  0.25  ▅\n") && !ContainsSubstring("loss"));
}

TEST_CASE("the JSON lines are followed although the table was there first") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  const fulgur::RunLock lock(run.folder);
  run.csv("step,epoch\n");
  RunWatcher watcher(run.folder);
  CHECK(watcher.poll());
  run.jsonl("{\"step\":1,\"epoch\":0,\"loss\":2.0}\n");
  CHECK(watcher.poll());
  CHECK(watcher.new_lines() == Lines{"step 1  epoch 0  loss=2"});
}

TEST_CASE("a run that was resumed counts from the checkpoint it continues from") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.config("trainer: {max_epochs: 9}\n").checkpoint(1, 20, 12.0);
  const fulgur::RunLock lock(run.folder);
  run.csv("step,epoch,loss\n10,0,2\n30,2,1\n60,5,0.5\n");
  RunWatcher watcher(run.folder);
  CHECK(watcher.poll());
  CHECK_THAT(watcher.summary(), ContainsSubstring("epoch 5/9 · step 60 "));
  run.csv("step,epoch,loss\n10,0,2\n");
  CHECK(watcher.poll());
  CHECK_THAT(watcher.summary(), ContainsSubstring("epoch 2/9 · step 20 "));
}

constexpr double kNever = 3600;
constexpr const char* kRestarts = "trainer: {strategy: {class_path: ddp, init_args: {max_restarts: 2}}}\n";

// A run that a watcher has seen training, and that does not train any more.
struct Stopped : TemporaryFolder {
  WrittenRun run{*this / "version_0"};
  std::optional<RunWatcher> watcher;
  explicit Stopped(const std::string& config, fulgur::history::RestartWait wait) {
    run.config(config).jsonl("{\"step\":5,\"epoch\":0,\"loss\":2.0}\n");
    const fulgur::RunLock lock(run.folder);
    watcher.emplace(run.folder, wait);
    CHECK(watcher->poll());
    CHECK(watcher->poll());
  }
};

TEST_CASE("a run that a launcher restarts is followed on") {
  Stopped it(kRestarts, {.usual_s = 0, .launcher_s = kNever});
  it.run.failed("[distributed] a peer died");
  CHECK(it.watcher->poll());
  CHECK(it.watcher->new_lines() == Lines{"the run has ended (failed); it may be restarted"});
  CHECK_THAT(it.watcher->screen({.columns = 80}, 10), ContainsSubstring("failed") && ContainsSubstring("restarted"));
  CHECK(it.watcher->poll());
  CHECK(it.watcher->new_lines().empty());
  {
    std::filesystem::remove(it.run.folder / "failed.json");
    const fulgur::RunLock lock(it.run.folder);
    append(it.run.folder / "metrics.jsonl", "{\"step\":6,\"epoch\":0,\"loss\":1.0}\n");
    CHECK(it.watcher->poll());
    CHECK(it.watcher->new_lines() == Lines{"step 6  epoch 0  loss=1"});
    CHECK_THAT(it.watcher->summary(), ContainsSubstring("running") && !ContainsSubstring("restarted"));
  }
  it.run.failed("[distributed] another peer died");
  CHECK(it.watcher->poll());
  CHECK_THAT(it.watcher->summary(), ContainsSubstring("another peer"));
  SECTION("and the last part may be shorter than the time between two looks") {
    it.run.finished(2, 20, 12.5);
    CHECK_FALSE(it.watcher->poll());
    CHECK_THAT(it.watcher->summary(), ContainsSubstring("finished · epoch 2 · step 20 · 12.5 s"));
  }
  SECTION("and another one that fails is shown with its own error") {
    it.run.failed("[distributed] a third peer died");
    CHECK(it.watcher->poll());
    CHECK_THAT(it.watcher->summary(), ContainsSubstring("third peer"));
  }
}

TEST_CASE("a run that ends before the first look may be restarted too") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.config(kRestarts);
  auto lock = std::make_unique<fulgur::RunLock>(run.folder);
  RunWatcher watcher(run.folder, {.usual_s = 0, .launcher_s = kNever});
  run.failed("[distributed] a peer died");
  lock.reset();
  CHECK(watcher.poll());
}

TEST_CASE("a run that was killed keeps its lock file, and a launcher may restart it") {
  Stopped it(kRestarts, {.usual_s = 0, .launcher_s = kNever});
  write_text(it.run.folder / "run.lock", "pid 999999999\nhost elsewhere\n");
  CHECK(it.watcher->poll());
  CHECK(it.watcher->new_lines() == Lines{"the run has ended (interrupted); it may be restarted"});
}

TEST_CASE("a run that no launcher restarts ends when its lock stays free") {
  SECTION("it failed, without max_restarts") {
    Stopped it("trainer: {strategy: ddp}\n", {.usual_s = 0.05, .launcher_s = kNever});
    it.run.failed("[data] a file is missing");
    CHECK(it.watcher->poll());
    CHECK(it.watcher->new_lines().empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    CHECK_FALSE(it.watcher->poll());
    CHECK_THAT(it.watcher->summary(), ContainsSubstring("failed") && ContainsSubstring("a file is missing"));
  }
  SECTION("a signal stopped it") {
    Stopped it(kRestarts, {.usual_s = 0, .launcher_s = kNever});
    CHECK_FALSE(it.watcher->poll());
    CHECK_THAT(it.watcher->summary(), ContainsSubstring("interrupted"));
  }
  SECTION("the launcher has given up") {
    Stopped it(kRestarts, {.usual_s = 0, .launcher_s = 0.05});
    it.run.failed("[distributed] a peer died");
    CHECK(it.watcher->poll());
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    CHECK_FALSE(it.watcher->poll());
    CHECK_THAT(it.watcher->summary(), !ContainsSubstring("restarted"));
  }
  SECTION("it is finished") {
    Stopped it(kRestarts, {.usual_s = kNever, .launcher_s = kNever});
    it.run.finished(1, 5, 1);
    CHECK_FALSE(it.watcher->poll());
  }
}

TEST_CASE("a run that is over is shown at once, with the way in which it ended") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.csv("step,epoch,loss\n1,0,1\n").failed("[data] it is\\u001b gone");
  RunWatcher watcher(run.folder);
  CHECK_FALSE(watcher.poll());
  CHECK(watcher.new_lines().size() == 1);
  CHECK_THAT(watcher.summary(), ContainsSubstring("failed") && ContainsSubstring("[data] it is\\x1b gone"));
}

TEST_CASE("the screen fits into the terminal") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  std::string names = "step,epoch", values = "1,0";
  for (int i = 0; i < 30; ++i) {
    names += ",a_long_metric_name_" + std::to_string(i);
    values += ",0.123456789";
  }
  run.csv(names + "\n" + values + "\n");
  RunWatcher watcher(run.folder);
  watcher.poll();
  for (const int64_t columns : {10, 40, 80}) {
    const std::string screen = watcher.screen({.columns = columns}, 12);
    CHECK(std::count(screen.begin(), screen.end(), '\n') == 12);
    for (size_t begin = 0, end = 0; (end = screen.find('\n', begin)) != std::string::npos; begin = end + 1)
      CHECK(fulgur::columns_of(screen.substr(begin, end - begin)) <= columns);
  }
}

TEST_CASE("what is not a run cannot be watched, and a damaged row ends the watching with an error") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(RunWatcher(folder / "none"), fulgur::ConfigError);
  const WrittenRun run(folder / "version_0");
  run.csv("step,epoch,loss\n1,0,x\n");
  RunWatcher watcher(run.folder);
  CHECK_THROWS_AS(watcher.poll(), fulgur::DataError);
}

}  // namespace watch_test
