#include "fulgur/history/comparison.h"

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/text_table.h"
#include "history/written_run.h"
#include "support/expect_error.h"

using namespace fulgur::test;

namespace comparison_test {

using namespace fulgur::history;
using Catch::Matchers::ContainsSubstring;

struct Two : TemporaryFolder {
  Run a, b;
  Two() {
    WrittenRun first(*this / "first"), second(*this / "second");
    first.config("optimizer: {init_args: {lr: 0.1}}\nseed_everything: 1\n")
        .csv("step,epoch,val_loss,train_loss\n10,0,2.0,1\n20,1,3.0,\n")
        .finished(2, 20, 10);
    second.config("optimizer: {init_args: {lr: 0.2, momentum: 0.9}}\nseed_everything: 1\n")
        .csv("step,epoch,val_loss\n10,0,4.0\n20,1,1.5\n")
        .finished(2, 20, 5);
    a = read_run(first.folder);
    b = read_run(second.folder);
  }
};

TEST_CASE("two runs are compared by options, metrics, time and throughput") {
  const Two two;
  const std::string text = comparison_text(two.a, two.b, {});
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("val_loss=1.5 at step 20 (better)"));
  CHECK_THAT(text, ContainsSubstring("val_loss=2 at step 10  "));
  CHECK_THAT(text, ContainsSubstring("-1.5 (-50.0 %)"));
  CHECK_THAT(text, ContainsSubstring("+2 (+100.0 %)"));
  CHECK_THAT(text, ContainsSubstring("optimizer.init_args.lr"));
  CHECK_THAT(text, ContainsSubstring("optimizer.init_args.momentum"));
  CHECK_THAT(text, !ContainsSubstring("seed_everything"));
  for (const int64_t columns : {10, 40, 70}) {
    const std::string narrow = comparison_text(two.a, two.b, {.columns = columns});
    for (size_t begin = 0, end = 0; (end = narrow.find('\n', begin)) != std::string::npos; begin = end + 1)
      CHECK(fulgur::columns_of(narrow.substr(begin, end - begin)) <= std::max<int64_t>(columns, 25));
  }
}

TEST_CASE("a callback that one run has more is one line, and moves no other") {
  const TemporaryFolder folder;
  WrittenRun first(folder / "first"), second(folder / "second");
  const std::string stopping = "{class_path: EarlyStopping, init_args: {monitor: val_loss, patience: PATIENCE}}";
  const auto config = [&](const std::string& before, const std::string& patience) {
    std::string text = stopping;
    text.replace(text.find("PATIENCE"), 8, patience);
    return "trainer: {callbacks: [" + before + text + "]}\n";
  };
  first.config(config("", "4")).csv("step,epoch\n");
  second.config(config("{class_path: LearningRateMonitor, init_args: {}}, ", "5")).csv("step,epoch\n");
  const std::string text = comparison_text(read_run(first.folder), read_run(second.folder), {});
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("trainer.callbacks[LearningRateMonitor]"));
  CHECK_THAT(text, ContainsSubstring("trainer.callbacks[EarlyStopping].init_args.patience  4"));
  CHECK_THAT(text, !ContainsSubstring("monitor"));
  CHECK_THAT(text, !ContainsSubstring("class_path"));
}

TEST_CASE("equal configs are said to be equal, and the better run of two equal ones is neither") {
  const Two two;
  const std::string text = comparison_text(two.a, two.a, {});
  CHECK_THAT(text, ContainsSubstring("The configs are the same."));
  CHECK_THAT(text, !ContainsSubstring("better"));
}

TEST_CASE("a run without a config is said to have none, and differs in no option") {
  const Two two;
  WrittenRun killed(two.path() / "killed");
  const std::string text = comparison_text(two.a, read_run(killed.folder), {});
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("killed: the run has no config that could be compared\n"));
  CHECK_THAT(text, !ContainsSubstring("init_args"));
  CHECK_THAT(text, !ContainsSubstring("The configs are the same."));
  CHECK(nlohmann::json::parse(comparison_json(two.a, read_run(killed.folder)))["config"].empty());
}

TEST_CASE("the comparison as JSON") {
  const Two two;
  const auto json = nlohmann::json::parse(comparison_json(two.a, two.b));
  CHECK(json["better"] == "b");
  CHECK(json["config"]["optimizer.init_args.lr"] == nlohmann::json::array({"0.1", "0.2"}));
  CHECK(json["config"]["optimizer.init_args.momentum"] == nlohmann::json::array({nullptr, "0.9"}));
  CHECK(json["metrics"]["val_loss"]["change"] == -1.5);
  CHECK(json["metrics"]["train_loss"]["b"].is_null());
  CHECK(json["metrics"]["train_loss"]["change"].is_null());
  CHECK(json["a"]["steps_per_s"] == 2);
  CHECK(json["b"]["steps_per_s"] == 4);
}

}  // namespace comparison_test
