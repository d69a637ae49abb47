#include "fulgur/loggers/csv_logger.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>

#include "fulgur/core/text/csv_format.h"
#include "loggers/hostile_names.h"
#include "loggers/warnings.h"
#include "support/temporary_folder.h"

namespace csv_logger_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<std::vector<std::string>> table(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::vector<std::vector<std::string>> rows;
  size_t position = 0;
  while (auto row = read_csv_row(text, position)) rows.push_back(*row);
  CHECK(position == text.size());
  return rows;
}

}  // namespace

TEST_CASE("csv columns come in the order of their appearance") {
  const TemporaryFolder folder;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"epoch", 0}, {"train_loss", 0.5}}, 9);
  CHECK(read_text(folder / "metrics.csv") == "step,epoch,train_loss\n9,0,0.5\n");
  logger.log_metrics({{"val_loss", 0.25}, {"epoch", 0}, {"val_acc", 1}}, 9);
  logger.log_metrics({{"epoch", 1}, {"train_loss", 0.125}}, 19);
  logger.finalize(RunStatus::success);
  CHECK(read_text(folder / "metrics.csv") ==
        "step,epoch,train_loss,val_loss,val_acc\n9,0,0.5,,\n9,0,,0.25,1.0\n19,1,0.125,,\n");
  CHECK_FALSE(std::filesystem::exists(folder / "metrics.csv.tmp"));
}

TEST_CASE("rows wait for flush_every_n_rows, flush and finalize") {
  const TemporaryFolder folder;
  CsvLogger::Options options;
  options.flush_every_n_rows = 3;
  CsvLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  const auto rows = [&] { return table(folder / "metrics.csv").size() - 1; };
  logger.log_metrics({{"a", 1}}, 1);
  logger.log_metrics({{"a", 1}}, 2);
  CHECK(rows() == 0);
  logger.log_metrics({{"a", 1}}, 3);
  CHECK(rows() == 3);
  logger.log_metrics({{"a", 1}}, 4);
  logger.flush();
  CHECK(rows() == 4);
  logger.log_metrics({{"a", 1}}, 5);
  logger.log_metrics({{"b", 1}}, 6);  // a new column takes the waiting row along
  logger.finalize(RunStatus::failed);
  CHECK(rows() == 6);
  CHECK(table(folder / "metrics.csv")[5] == std::vector<std::string>{"5", "", "1.0", ""});
}

TEST_CASE("csv rows that wait are written before their room is used up") {
  const TemporaryFolder folder;
  CsvLogger::Options options;
  options.flush_every_n_rows = 1'000'000;
  CsvLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  for (int64_t step = 1; step <= 100'000; ++step) logger.log_metrics({{"epoch", 0}, {"train_loss", 1.0 / 3}}, step);
  logger.finalize(RunStatus::success);
  CHECK(table(folder / "metrics.csv").size() == 100'001);
}

TEST_CASE("a resumed run has the csv rows of an uninterrupted one") {
  const TemporaryFolder folder;
  const auto log_steps = [](CsvLogger& logger, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; ++step) {
      logger.log_metrics({{"epoch", static_cast<double>(step / 4)}, {"loss", 1.0 / static_cast<double>(step)}}, step);
      if (step % 4 == 0)
        logger.log_metrics({{"epoch", static_cast<double>(step / 4)}, {"val", static_cast<double>(step)}}, step);
      if (step == 7) logger.log_metrics({{"late", 7}}, step);
    }
  };
  CsvLogger whole;
  whole.start(folder / "whole", std::nullopt);
  log_steps(whole, 1, 10);
  whole.finalize(RunStatus::success);
  for (const int64_t cut : {0, 2, 4, 6, 7, 10}) {
    const auto dir = folder / ("cut" + std::to_string(cut));
    {
      CsvLogger first;
      first.start(dir, std::nullopt);
      log_steps(first, 1, 9);
    }
    write_text(dir / "metrics.csv", read_text(dir / "metrics.csv") + "10,2,0.");  // torn by a kill
    CsvLogger second;
    second.start(dir, cut);
    log_steps(second, cut + 1, 10);
    second.finalize(RunStatus::success);
    INFO("resumed at " << cut);
    if (cut == 10) {
      CHECK(table(dir / "metrics.csv").size() ==
            table(folder / "whole" / "metrics.csv").size() - 1);  // step 10 itself was never whole
    } else {
      CHECK(read_text(dir / "metrics.csv") == read_text(folder / "whole" / "metrics.csv"));
    }
  }
}

TEST_CASE("a second stage in the same folder continues below") {
  const TemporaryFolder folder;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"epoch", 0}, {"train_loss", 0.5}}, 3);
  logger.finalize(RunStatus::success);
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"epoch", 0}, {"test_acc", 0.75}}, 3);
  logger.finalize(RunStatus::success);
  CHECK(read_text(folder / "metrics.csv") == "step,epoch,train_loss,test_acc\n3,0,0.5,\n3,0,,0.75\n");
}

TEST_CASE("F47: hostile metric names leave the csv parseable") {
  const TemporaryFolder folder;
  const auto names = hostile_names();
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  for (size_t i = 0; i < names.size(); ++i)
    logger.log_metrics({{"epoch", 0}, {names[i], static_cast<double>(i)}}, static_cast<int64_t>(i));
  logger.finalize(RunStatus::success);
  CsvLogger again;
  again.start(folder.path(), static_cast<int64_t>(names.size()));  // reads its own header back
  again.log_metrics({{names[3], 99}}, 100);
  again.finalize(RunStatus::success);
  const auto rows = table(folder / "metrics.csv");
  REQUIRE(rows.size() == names.size() + 2);
  for (size_t i = 0; i < names.size(); ++i) {
    CHECK(rows[0][i + 2] == names[i]);
    CHECK(rows[i + 1][i + 2] == csv_number(static_cast<double>(i)));
  }
  CHECK(rows.back()[5] == "99.0");
}

TEST_CASE("a metric named step does not hide the step") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"step", 5}, {"a", 1}}, 3);
  CHECK(read_text(folder / "metrics.csv") == "step,epoch,a\n3,,1.0\n");
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.reserved_name"));
}

TEST_CASE("F8: a folder that cannot be written is one warning, and rows come when it can") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  write_text(folder / "blocked", "a file where the run folder should be");
  CsvLogger logger;
  logger.start(folder / "blocked", std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  logger.log_metrics({{"b", 2}}, 2);
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.csv_write") && ContainsSubstring("Not a directory"));
  std::filesystem::remove(folder / "blocked");
  std::filesystem::create_directory(folder / "blocked");
  logger.log_metrics({{"a", 3}}, 3);
  logger.finalize(RunStatus::success);
  CHECK(read_text(folder / "blocked" / "metrics.csv") == "step,epoch,a,b\n1,,1.0,\n2,,,2.0\n3,,3.0,\n");
}

TEST_CASE("F8: rows that have no room to wait are counted") {
  const TemporaryFolder folder;
  std::vector<std::string> errors;
  log::set_sink(
      [](log::Level level, const std::string& line, void* all) {
        if (level == log::Level::error) static_cast<std::vector<std::string>*>(all)->push_back(line);
      },
      &errors);
  write_text(folder / "blocked", "a file where the run folder should be");
  CsvLogger logger;
  logger.start(folder / "blocked", std::nullopt);
  const std::string name(1000, 'n');
  constexpr int64_t kRows = 200'000;
  for (int64_t step = 0; step < kRows; ++step) logger.log_metrics({{name, 1}}, step);  // more than 1 MiB
  CHECK(errors.empty());
  std::filesystem::remove(folder / "blocked");
  logger.finalize(RunStatus::success);
  log::set_sink(nullptr, nullptr);
  const auto written = static_cast<int64_t>(table(folder / "blocked" / "metrics.csv").size()) - 1;
  CHECK(written > 0);
  CHECK(written < kRows);
  REQUIRE(errors.size() == 1);
  CHECK_THAT(errors[0],
             ContainsSubstring(std::to_string(kRows - written) + " rows of metrics could not be written to ") &&
                 ContainsSubstring("metrics.csv"));
}

TEST_CASE("what is not a file in place of metrics.csv is named, and nothing waits for it") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  const std::string kind = GENERATE("folder", "fifo");
  const auto path = folder / "metrics.csv";
  if (kind == "folder")
    std::filesystem::create_directory(path);
  else
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CsvLogger logger;
  logger.start(folder.path(), 3);
  logger.log_metrics({{"a", 1}}, 4);
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.csv_write") &&
                                      ContainsSubstring(path.string() + " is not a regular file") &&
                                      ContainsSubstring(kind));
  std::filesystem::remove(path);
  logger.finalize(RunStatus::success);
  CHECK(read_text(path) == "step,epoch,a\n4,,1.0\n");
}

TEST_CASE("F8: a full disk is one warning, tears no row, and loses none that fits later") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  // A limit on the size of files stands in for a full disk.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{std::filesystem::file_size(folder / "metrics.csv") + 3, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &low);
  logger.log_metrics({{"a", 2}}, 2);
  logger.log_metrics({{"a", 3}}, 3);
  const std::string meanwhile = read_text(folder / "metrics.csv");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(meanwhile == "step,epoch,a\n1,,1.0\n");
  REQUIRE(warnings.lines().size() == 1);
  logger.log_metrics({{"a", 4}}, 4);
  CHECK(read_text(folder / "metrics.csv") == "step,epoch,a\n1,,1.0\n2,,2.0\n3,,3.0\n4,,4.0\n");
}

TEST_CASE("F44: a link in place of metrics.csv is replaced, not followed") {
  const TemporaryFolder folder;
  write_text(folder / "outside", "precious");
  std::filesystem::create_directory(folder / "run");
  std::filesystem::create_symlink(folder / "outside", folder / "run" / "metrics.csv");
  CsvLogger logger;
  logger.start(folder / "run", std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  CHECK(read_text(folder / "outside") == "precious");
  CHECK(read_text(folder / "run" / "metrics.csv") == "step,epoch,a\n1,,1.0\n");
}

TEST_CASE("CsvLogger writes the hyper-parameters as hparams.yaml") {
  TemporaryFolder folder;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_hyperparams(ConfigNode::map({{"lr", ConfigNode::number(0.1)}, {"name", ConfigNode::string("2")}}));
  CHECK(read_text(folder / "hparams.yaml") == "lr: 0.1\nname: \"2\"\n");
}

}  // namespace csv_logger_test
