#include "fulgur/loggers/jsonl_logger.h"

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "loggers/hostile_names.h"
#include "loggers/warnings.h"
#include "support/temporary_folder.h"

namespace jsonl_logger_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a jsonl row has step, epoch and the metrics in order") {
  const TemporaryFolder folder;
  JsonlLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"val_loss", 0.1}, {"epoch", 2}, {"acc", 1}}, 30);
  CHECK(read_text(folder / "metrics.jsonl") == "{\"step\":30,\"epoch\":2,\"val_loss\":0.1,\"acc\":1.0}\n");
}

TEST_CASE("values that JSON has no number for are strings") {
  const TemporaryFolder folder;
  JsonlLogger logger;
  logger.start(folder.path(), std::nullopt);
  const double infinity = std::numeric_limits<double>::infinity();
  logger.log_metrics({{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}}, 1);
  CHECK(read_text(folder / "metrics.jsonl") == "{\"step\":1,\"a\":\"NaN\",\"b\":\"Infinity\",\"c\":\"-Infinity\"}\n");
}

TEST_CASE("jsonl rows are appended; the file is never rewritten without need") {
  const TemporaryFolder folder;
  JsonlLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  logger.finalize(RunStatus::success);
  struct stat before {
  }, after{};
  REQUIRE(stat((folder / "metrics.jsonl").c_str(), &before) == 0);
  JsonlLogger again;
  again.start(folder.path(), 1);
  again.log_metrics({{"b", 2}}, 2);
  again.finalize(RunStatus::success);
  REQUIRE(stat((folder / "metrics.jsonl").c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
  CHECK(read_text(folder / "metrics.jsonl") == "{\"step\":1,\"a\":1.0}\n{\"step\":2,\"b\":2.0}\n");
}

TEST_CASE("a resumed run cuts jsonl rows past its step and torn ones") {
  const TemporaryFolder folder;
  write_text(folder / "metrics.jsonl",
             "{\"step\":1,\"a\":1.0}\nno json\n{\"step\":2,\"a\":2.0}\n{\"step\":3,\"a\":3.0}\n{\"step\":2,\"a");
  JsonlLogger logger;
  logger.start(folder.path(), 2);
  logger.log_metrics({{"a", 4}}, 3);
  logger.finalize(RunStatus::success);
  CHECK(read_text(folder / "metrics.jsonl") ==
        "{\"step\":1,\"a\":1.0}\n{\"step\":2,\"a\":2.0}\n{\"step\":3,\"a\":4.0}\n");
}

TEST_CASE("F47: hostile metric names leave the jsonl parseable, a row a line") {
  const TemporaryFolder folder;
  auto names = hostile_names();
  JsonlLogger logger;
  logger.start(folder.path(), std::nullopt);
  Metrics metrics;
  for (size_t i = 0; i < names.size(); ++i) metrics.emplace_back(names[i], static_cast<double>(i));
  logger.log_metrics(metrics, 1);
  logger.log_metrics({{"not utf-8 \xff\xfe", 5}}, 2);
  logger.finalize(RunStatus::success);
  std::istringstream lines(read_text(folder / "metrics.jsonl"));
  std::string line;
  REQUIRE(std::getline(lines, line));
  const auto row = nlohmann::json::parse(line);
  CHECK(row.size() == names.size() + 1);
  for (size_t i = 0; i < names.size(); ++i) CHECK(row.at(names[i]).get<double>() == static_cast<double>(i));
  REQUIRE(std::getline(lines, line));
  CHECK(nlohmann::json::parse(line).size() == 2);
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("F8: jsonl that cannot be written is one warning") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  std::filesystem::create_directories(folder / "run" / "metrics.jsonl");  // a folder where the file should be
  JsonlLogger logger;
  logger.start(folder / "run", std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  logger.log_metrics({{"a", 2}}, 2);
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.jsonl_write"));
  std::filesystem::remove(folder / "run" / "metrics.jsonl");
  logger.finalize(RunStatus::failed);
  CHECK(read_text(folder / "run" / "metrics.jsonl") == "{\"step\":1,\"a\":1.0}\n{\"step\":2,\"a\":2.0}\n");
}

TEST_CASE("JsonlLogger writes the hyper-parameters as hparams.json, with their types") {
  TemporaryFolder folder;
  JsonlLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_hyperparams(ConfigNode::map({{"lr", ConfigNode::number(0.1)},
                                          {"name", ConfigNode::string("2")},
                                          {"widths", ConfigNode::list({ConfigNode::integer(8)})},
                                          {"bias", ConfigNode::boolean(true)}}));
  CHECK(nlohmann::json::parse(read_text(folder / "hparams.json")) ==
        nlohmann::json::parse(R"({"lr": 0.1, "name": "2", "widths": [8], "bias": true})"));
}

}  // namespace jsonl_logger_test
