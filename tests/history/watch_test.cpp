#include "fulgur/history/watch.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>

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
