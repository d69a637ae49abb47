#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "fulgur/loggers/tensorboard_logger.h"
#include "loggers/warnings.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace run_name_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("F44: the name of a run is a plain folder name") {
  const std::vector<std::string> bad = {
      "",    ".",    "..",   "../../etc/x",        "/etc", "a/b", std::string("a\0b", 3),
      "a\n", "\x1b", "\x7f", std::string(256, 'n')};
  for (const std::string& name : bad) {
    CsvLogger::Options csv;
    csv.name = name;
    JsonlLogger::Options jsonl;
    jsonl.name = name;
    TensorBoardLogger::Options tensorboard;
    tensorboard.name = name;
    const std::string message = test::message_of<ConfigError>([&] { CsvLogger{csv}; });
    CHECK_THAT(message, ContainsSubstring("plain folder name"));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.find('\x1b') == std::string::npos);
    CHECK_THROWS_AS(JsonlLogger{jsonl}, ConfigError);
    CHECK_THROWS_AS(TensorBoardLogger{tensorboard}, ConfigError);
  }
  CsvLogger::Options good;
  for (const std::string& name :
       {std::string("fulgur_logs"), std::string("a b"), std::string("..."), std::string("ü"), std::string(255, 'n')}) {
    good.name = name;
    CHECK(CsvLogger(good).run_name() == name);
  }
}

TEST_CASE("name and version reach the run; the loggers are registered") {
  for (const char* name : {"CsvLogger", "JsonlLogger", "TensorBoardLogger"}) {
    const auto& info = Registry<Logger>::instance().get(name);
    const auto options = info.make_options();
    const auto make = [&] { return std::static_pointer_cast<Logger>(info.create(*options)); };
    CHECK(make()->run_name() == "fulgur_logs");
    CHECK_FALSE(make()->run_version().has_value());
    Fields fields;
    options->fields(fields);
    Problems problems;
    fields.read(ConfigNode::map({{"name", ConfigNode::string("mine")}, {"version", ConfigNode::integer(7)}}), problems,
                "");
    CHECK(problems.report().empty());
    CHECK(make()->run_name() == "mine");
    CHECK(make()->run_version() == 7);
    fields.read(ConfigNode::map({{"version", ConfigNode::integer(-1)}}), problems, "");
    CHECK_FALSE(problems.empty());
  }
}

TEST_CASE("a logger that never started can be flushed and ended, and leaves nothing") {
  const test::TemporaryFolder folder;
  const test::CollectedWarnings warnings;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  for (const char* name : {"CsvLogger", "JsonlLogger", "TensorBoardLogger"}) {
    const auto logger = Spec<Logger>(name).create();
    logger->flush();
    logger->finalize(RunStatus::failed);
    CHECK_THROWS_AS(logger->log_metrics({{"a", 1}}, 1), Error);
  }
  std::filesystem::current_path(before);
  CHECK(warnings.lines().empty());
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace run_name_test
