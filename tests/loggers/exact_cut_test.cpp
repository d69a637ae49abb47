// A logger's files are cut where a checkpoint was made, whatever steps its rows have.
#include <sys/stat.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "fulgur/loggers/memory_logger.h"
#include "fulgur/loggers/tensorboard_logger.h"
#include "loggers/event_reader.h"
#include "loggers/warnings.h"
#include "support/temporary_folder.h"

namespace exact_cut_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// Steps that neither rise nor are the run's, rows of one step twice, and columns that come late.
const std::vector<std::pair<Metrics, int64_t>> kRows{
    {{{"epoch", 0}, {"loss", 0.5}}, 4000}, {{{"epoch", 0}, {"val", 1}}, 3},
    {{{"epoch", 0}, {"loss", 0.25}}, 3},   {{{"late", 7}}, 3},
    {{{"epoch", 1}, {"loss", 0.125}}, 1},  {{{"later", 8}, {"loss", 9}}, 8000}};

void log_rows(Logger& logger, size_t from, size_t to) {
  for (size_t i = from; i < to; ++i) logger.log_metrics(kRows[i].first, kRows[i].second);
}

/// The files of a folder, whatever their names; of TensorBoard's the rows.
template <class L>
std::vector<std::string> content(const std::filesystem::path& folder) {
  std::vector<std::string> all;
  if constexpr (std::is_same_v<L, TensorBoardLogger>) {
    for (const TestEvent& event : read_events(folder))
      for (const auto& value : event.values)
        all.push_back(value.tag + " " + std::to_string(event.step) + " " + std::to_string(*value.number));
  } else {
    for (const char* name : {"metrics.csv", "metrics.jsonl"})
      if (std::filesystem::exists(folder / name)) all.push_back(read_text(folder / name));
  }
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("a resume cuts a logger's files where its checkpoint was made", "", CsvLogger, JsonlLogger,
                   TensorBoardLogger) {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  TestType whole;
  whole.start(folder / "whole", std::nullopt);
  log_rows(whole, 0, kRows.size());
  whole.finalize(RunStatus::interrupted);
  for (size_t saved = 0; saved <= kRows.size(); ++saved)
    for (size_t killed = saved; killed <= kRows.size(); ++killed) {
      CAPTURE(saved, killed);
      const auto dir = folder / (std::to_string(saved) + "-" + std::to_string(killed));
      StateTree state;
      {
        TestType first;
        first.start(dir, std::nullopt);
        log_rows(first, 0, saved);
        state = first.state();
        log_rows(first, saved, killed);
        first.finalize(RunStatus::interrupted);
      }
      // Twice: the second time a checkpoint of the first resume counts.
      for (int resume = 0; resume < 2; ++resume) {
        TestType second;
        second.load_state(state);
        second.start(dir, 5);
        state = second.state();
        log_rows(second, saved, kRows.size());
        second.finalize(RunStatus::interrupted);
        CHECK(content<TestType>(dir) == content<TestType>(folder / "whole"));
      }
    }
  CHECK(warnings.lines().empty());
}

TEMPLATE_TEST_CASE("a file that is not what it was at the checkpoint is cut by step, with a warning", "", CsvLogger,
                   JsonlLogger) {
  const TemporaryFolder folder;
  for (const char* change : {"shorter", "other", "gone"}) {
    CAPTURE(change);
    const CollectedWarnings warnings;
    const auto dir = folder / change;
    TestType first;
    first.start(dir, std::nullopt);
    for (int64_t step = 1; step <= 3; ++step) first.log_metrics({{"a", static_cast<double>(step)}}, step);
    const StateTree state = first.state();
    first.log_metrics({{"a", 4}}, 4);
    first.finalize(RunStatus::interrupted);
    const auto path = std::filesystem::directory_iterator(dir)->path();
    std::string text = read_text(path);
    if (change == std::string("gone"))
      std::filesystem::remove(path);
    else if (change == std::string("shorter"))
      write_text(path, text.substr(0, state.at("bytes").as_uint() - 2));
    else
      write_text(path, text.replace(text.find("1.0"), 3, "9.0"));
    TestType second;
    second.load_state(state);
    second.start(dir, 3);
    second.finalize(RunStatus::interrupted);
    REQUIRE(warnings.lines().size() == 1);
    CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.cut_by_step") && ContainsSubstring(path.string()));
    if (change == std::string("gone")) continue;
    CHECK_THAT(read_text(path), ContainsSubstring("2.0") && !ContainsSubstring("4.0"));
  }
}

TEST_CASE("event files that are not what they were are marked by step, and stay") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  TensorBoardLogger first;
  first.start(folder.path(), std::nullopt);
  first.log_metrics({{"a", 1}}, 1);
  StateTree state = first.state();
  first.log_metrics({{"a", 2}}, 2);
  first.finalize(RunStatus::interrupted);
  write_text(folder / "outside", "precious");
  std::filesystem::create_directory(folder / "run");
  const bool another_text = GENERATE(true, false);  // else another file
  CAPTURE(another_text);
  if (another_text)
    state["crc32c"] = 5;
  else
    state["file"] = "../outside";
  TensorBoardLogger second;
  second.load_state(state);
  second.start(folder.path(), 1);
  second.finalize(RunStatus::interrupted);
  CHECK(tags(folder.path()).size() == 2);
  CHECK(read_text(folder / "outside") == "precious");
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.cut_by_step"));
}

TEST_CASE("a state that a logger cannot save is null") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  write_text(folder / "blocked", "a file where the run folder should be");
  CsvLogger csv;
  JsonlLogger jsonl;
  TensorBoardLogger tensorboard;
  for (Logger* logger : std::initializer_list<Logger*>{&csv, &jsonl, &tensorboard}) {
    CHECK(logger->state().is_null());
    logger->start(folder / "blocked", std::nullopt);
    logger->log_metrics({{"a", 1}}, 1);
    CHECK(logger->state().is_null());
  }
}

TEST_CASE("a logger in memory is cut where its checkpoint was made") {
  MemoryLogger logger;
  logger.start({}, std::nullopt);
  log_rows(logger, 0, 3);
  const StateTree state = logger.state();
  log_rows(logger, 3, 5);
  logger.load_state(state);
  logger.start({}, 2);
  CHECK(logger.rows.size() == 3);
  logger.start({}, 2);  // without a state, by step
  CHECK(logger.rows.empty());
}

}  // namespace exact_cut_test
