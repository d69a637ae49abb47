#include "fulgur/core/errors.h"
#include "fulgur/core/registry.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "support/expect_error.h"

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("F44: the name of a run is a plain folder name") {
  const std::vector<std::string> bad = {"",    ".",   "..",   "../../etc/x", "/etc",  "a/b", std::string("a\0b", 3),
                                        "a\n", "\x1b", "\x7f", std::string(256, 'n')};
  for (const std::string& name : bad) {
    CsvLogger::Options csv;
    csv.name = name;
    JsonlLogger::Options jsonl;
    jsonl.name = name;
    const std::string message = test::message_of<ConfigError>([&] { CsvLogger{csv}; });
    CHECK_THAT(message, ContainsSubstring("plain folder name"));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.find('\x1b') == std::string::npos);
    CHECK_THROWS_AS(JsonlLogger{jsonl}, ConfigError);
  }
  CsvLogger::Options good;
  for (const std::string& name : {std::string("fulgur_logs"), std::string("a b"), std::string("..."), std::string("ü"), std::string(255, 'n')}) {
    good.name = name;
    CHECK(CsvLogger(good).run_name() == name);
  }
}

TEST_CASE("name and version reach the run; the loggers are registered") {
  CsvLogger::Options options;
  CHECK_FALSE(CsvLogger(options).run_version().has_value());
  options.version = 7;
  CHECK(CsvLogger(options).run_version() == 7);
  CHECK(CsvLogger().run_name() == "fulgur_logs");
  for (const char* name : {"CsvLogger", "JsonlLogger"}) {
    const auto& info = Registry<Logger>::instance().get(name);
    CHECK(std::static_pointer_cast<Logger>(info.create(*info.make_options()))->run_name() == "fulgur_logs");
  }
}
