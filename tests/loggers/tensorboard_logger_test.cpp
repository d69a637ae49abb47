#include "fulgur/loggers/tensorboard_logger.h"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "fulgur/core/text/text.h"
#include "loggers/event_reader.h"
#include "loggers/hostile_names.h"
#include "loggers/tensorboard_python.h"
#include "loggers/warnings.h"
#include "support/expect_error.h"
#include "tensorboard/hparams.h"

namespace tensorboard_logger_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Matches;

namespace {

using Options = TensorBoardLogger::Options;
constexpr double kNever = std::numeric_limits<double>::infinity();

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

ConfigNode some_hparams() {
  return ConfigNode::map(
      {{"hidden", ConfigNode::integer(128)},
       {"name", ConfigNode::string("2")},
       {"optimizer", ConfigNode::map({{"lr", ConfigNode::number(0.25)}, {"fused", ConfigNode::boolean(true)}})},
       {"sizes", ConfigNode::list({ConfigNode::integer(1), ConfigNode::integer(2)})},
       {"clip", ConfigNode::null()}});
}

}  // namespace

TEST_CASE("an event file has the name that TensorBoard looks for, and its version first") {
  const TemporaryFolder folder;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  const auto files = event_files(folder.path());
  REQUIRE(files.size() == 1);
  CHECK_THAT(files[0].filename().string(),
             Matches(cat("events\\.out\\.tfevents\\.[0-9]{10}\\.[-A-Za-z0-9._]+\\.", ::getpid(), "\\.[0-9]+")));
  const auto records = read_records(files[0]);
  REQUIRE(records.size() == 1);
  const TestEvent first = read_event(records[0]);
  CHECK(first.file_version == "brain.Event:2");
  CHECK(std::abs(first.wall_time - now()) < 60);
}

TEST_CASE("a row is one event with its step and its unchanged values") {
  const TemporaryFolder folder;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  const double infinity = std::numeric_limits<double>::infinity();
  logger.log_metrics({{"train_loss", 0.1}, {"epoch", 2}}, 50);
  logger.log_metrics({{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}, {"d", 0}}, int64_t{1} << 40);
  logger.log_metrics({}, 60);
  logger.finalize(RunStatus::success);
  const auto events = read_events(folder.path());
  REQUIRE(events.size() == 2);
  CHECK(events[0].step == 50);
  CHECK(std::abs(events[0].wall_time - now()) < 60);
  REQUIRE(events[0].values.size() == 2);
  CHECK(events[0].values[0].tag == "train_loss");
  CHECK(events[0].values[0].number == 0.1F);
  CHECK(events[0].values[1].tag == "epoch");
  CHECK(events[0].values[1].number == 2.0F);
  CHECK(events[1].step == int64_t{1} << 40);
  REQUIRE(events[1].values.size() == 4);
  CHECK(std::isnan(*events[1].values[0].number));
  CHECK(events[1].values[1].number == std::numeric_limits<float>::infinity());
  CHECK(events[1].values[2].number == -std::numeric_limits<float>::infinity());
  CHECK(events[1].values[3].number == 0.0F);
}

TEST_CASE("F47: hostile metric names are unchanged tags, and always UTF-8") {
  const TemporaryFolder folder;
  const auto names = hostile_names();
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  for (const std::string& name : names) logger.log_metrics({{name, 1}}, 1);
  logger.log_metrics({{std::string("n\0l", 3), 1}, {"not utf-8 \xff", 1}}, 1);
  logger.log_hyperparams(ConfigNode::map({{"key \xff", ConfigNode::string("value \xff")}}));
  logger.finalize(RunStatus::success);
  const auto found = tags(folder.path());
  REQUIRE(found.size() >= names.size() + 2);
  for (size_t i = 0; i < names.size(); ++i) CHECK(found[i] == names[i]);
  CHECK(found[names.size()] == std::string("n\0l", 3));
  CHECK(found[names.size() + 1] == "not utf-8 \xef\xbf\xbd");
}

TEST_CASE("a metric named step is a tag like others") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"step", 5}, {"a", 1}}, 3);
  logger.finalize(RunStatus::success);
  CHECK(tags(folder.path()) == std::vector<std::string>{"step", "a"});
  CHECK(read_events(folder.path())[0].step == 3);
  CHECK(warnings.lines().empty());
}

TEST_CASE("prefix is put before each name") {
  const TemporaryFolder folder;
  Options options;
  options.prefix = "cnn";
  TensorBoardLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  logger.log_hyperparams(some_hparams());
  logger.log_metrics({{"loss", 1}, {"epoch", 0}}, 1);
  logger.finalize(RunStatus::success);
  const auto events = read_events(folder.path());
  REQUIRE(events.size() == 5);
  CHECK(events[0].values[0].tag == "cnn-hp_metric");
  CHECK_THAT(events[1].values[0].content,
             ContainsSubstring("cnn-hp_metric"));  // the experiment's metric is the one that is written
  CHECK(events[3].values[0].tag == "cnn-loss");
  CHECK(events[3].values[1].tag == "cnn-epoch");
}

TEST_CASE("default_hp_metric writes hp_metric and makes it the table's metric") {
  for (const bool on : {true, false}) {
    const TemporaryFolder folder;
    Options options;
    options.default_hp_metric = on;
    TensorBoardLogger logger(options);
    logger.start(folder.path(), std::nullopt);
    logger.log_hyperparams(some_hparams());
    logger.finalize(RunStatus::success);
    using Tags = std::vector<std::string>;
    if (on) {
      CHECK(tags(folder.path()) ==
            Tags{"hp_metric", "_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info"});
      CHECK(read_events(folder.path())[0].values[0].number == -1.0F);
      CHECK(read_events(folder.path())[0].step == 0);
    } else {
      CHECK(tags(folder.path()) == Tags{"_hparams_/session_start_info", "_hparams_/session_end_info"});
    }
  }
}

TEST_CASE("hp_metric is not written again over what the module logged") {
  const TemporaryFolder folder;
  TensorBoardLogger logger;
  logger.start(folder / "a", std::nullopt);
  logger.log_hyperparams(some_hparams());
  logger.finalize(RunStatus::success);
  logger.start(folder / "a", std::nullopt);  // a second stage
  logger.log_hyperparams(some_hparams());
  logger.finalize(RunStatus::success);
  TensorBoardLogger resumed;
  resumed.start(folder / "a", 10);
  resumed.log_hyperparams(some_hparams());
  resumed.finalize(RunStatus::success);
  const auto in_a = tags(folder / "a");
  CHECK(std::count(in_a.begin(), in_a.end(), "hp_metric") == 1);
  logger.start(folder / "b", std::nullopt);
  logger.log_hyperparams(some_hparams());
  const auto in_b = tags(folder / "b");
  CHECK(std::count(in_b.begin(), in_b.end(), "hp_metric") == 1);
}

TEST_CASE("hyper-parameters are the leaves of the map, each name once") {
  const auto flat = tensorboard::flatten_hparams(ConfigNode::map(
      {{"a/b", ConfigNode::integer(1)},
       {"list", ConfigNode::list({ConfigNode::map({{"x", ConfigNode::null()}, {"y", ConfigNode::boolean(true)}}),
                                  ConfigNode::list()})},
       {"empty", ConfigNode::map()},
       {"a", ConfigNode::map(
                 {{"b", ConfigNode::integer(2)}, {"c", ConfigNode::map({{"d", ConfigNode::scalar("auto")}})}})}}));
  REQUIRE(flat.size() == 3);
  CHECK(flat[0].name == "list");
  CHECK(std::get<std::string>(flat[0].value) == "[{x: null, y: true}, []]");
  CHECK(flat[1].name == "a/b");
  CHECK(std::get<double>(flat[1].value) == 2);
  CHECK(flat[2].name == "a/c/d");
  CHECK(std::get<std::string>(flat[2].value) == "auto");
  CHECK(tensorboard::flatten_hparams(ConfigNode::list({ConfigNode::integer(1)})).empty());
}

TEST_CASE("a model without hyper-parameters leaves none") {
  const TemporaryFolder folder;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_hyperparams(ConfigNode::null());
  logger.log_hyperparams(ConfigNode::map());
  logger.log_hyperparams(ConfigNode::map({{"optimizer", ConfigNode::map()}}));
  logger.finalize(RunStatus::success);
  CHECK(read_events(folder.path()).empty());
}

TEST_CASE("sub_dir is where the event files are") {
  const TemporaryFolder folder;
  Options options;
  options.sub_dir = "tb/fit";
  TensorBoardLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  logger.finalize(RunStatus::success);
  CHECK(event_files(folder.path()).empty());
  CHECK(event_files(folder / "tb" / "fit").size() == 1);
}

TEST_CASE("F44: sub_dir stays below the run folder") {
  const std::vector<std::string> bad = {"",
                                        "/etc",
                                        "..",
                                        "a/../..",
                                        "a/..",
                                        ".",
                                        "a//b",
                                        "a/",
                                        "a\nb",
                                        "\x1b/a",
                                        std::string("a\0b", 3),
                                        std::string(256, 'n'),
                                        "/"};
  for (const std::string& sub_dir : bad) {
    Options options;
    options.sub_dir = sub_dir;
    const std::string message = message_of<ConfigError>([&] { TensorBoardLogger{options}; });
    CHECK_THAT(message, ContainsSubstring("sub_dir must be a folder below the run folder"));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.find('\x1b') == std::string::npos);
  }
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  std::filesystem::create_directories(folder / "outside");
  std::filesystem::create_directory_symlink(folder / "outside", folder / "run" / "tb");
  Options options;
  options.sub_dir = "tb/fit";
  TensorBoardLogger logger(options);
  CHECK_THROWS_AS(logger.start(folder / "run", std::nullopt), ConfigError);
  CHECK(std::filesystem::is_empty(folder / "outside"));
}

TEST_CASE("rows wait for flush_every_s, flush, a checkpoint and finalize") {
  const TemporaryFolder folder;
  Options options;
  const auto rows = [](const std::filesystem::path& dir) { return read_events(dir).size(); };
  options.flush_every_s = kNever;
  TensorBoardLogger patient(options);
  patient.start(folder / "patient", std::nullopt);
  patient.log_metrics({{"a", 1}}, 1);
  CHECK(rows(folder / "patient") == 0);
  patient.flush();
  CHECK(rows(folder / "patient") == 1);
  patient.log_metrics({{"a", 1}}, 2);
  CHECK(rows(folder / "patient") == 1);
  patient.after_save_checkpoint({});
  CHECK(rows(folder / "patient") == 2);
  patient.log_metrics({{"a", 1}}, 3);
  patient.finalize(RunStatus::failed);
  CHECK(rows(folder / "patient") == 3);

  options.flush_every_s = 0;
  TensorBoardLogger hasty(options);
  hasty.start(folder / "hasty", std::nullopt);
  hasty.log_metrics({{"a", 1}}, 1);
  CHECK(rows(folder / "hasty") == 1);

  options.flush_every_s = 0.05;
  TensorBoardLogger timed(options);
  timed.start(folder / "timed", std::nullopt);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  timed.log_metrics({{"a", 1}}, 1);
  CHECK(rows(folder / "timed") == 1);
}

TEST_CASE("events that wait are written before their room is used up") {
  const TemporaryFolder folder;
  Options options;
  options.flush_every_s = kNever;
  TensorBoardLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  const std::string name(10000, 'n');
  for (int64_t step = 0; step < 2500; ++step) logger.log_metrics({{name, 1}}, step);
  logger.finalize(RunStatus::success);
  CHECK(read_events(folder.path()).size() == 2500);
}

TEST_CASE("the end of a run is the status of its session, except for an interrupted one") {
  const std::map<RunStatus, std::optional<std::string>> ends = {{RunStatus::success, std::string("\x08\x01", 2)},
                                                                {RunStatus::failed, std::string("\x08\x02", 2)},
                                                                {RunStatus::interrupted, std::nullopt}};
  for (const auto& [status, code] : ends) {
    const TemporaryFolder folder;
    TensorBoardLogger logger;
    logger.start(folder.path(), std::nullopt);
    logger.log_hyperparams(some_hparams());
    logger.finalize(status);
    logger.finalize(status);
    const auto events = read_events(folder.path());
    REQUIRE(events.size() == (code ? 4 : 3));
    if (!code) continue;
    CHECK(events[3].values[0].tag == "_hparams_/session_end_info");
    CHECK(events[3].values[0].plugin == "hparams");
    CHECK_THAT(events[3].values[0].content, ContainsSubstring(*code));
  }
}

TEST_CASE("a resumed run writes a file that comes last and marks where the past is cut") {
  const TemporaryFolder folder;
  const std::string later =
      cat("events.out.tfevents.", static_cast<int64_t>(now()) + 1000, ".zzz.1.0");  // its clock was ahead
  write_text(folder / later, "");
  write_text(folder / "events.out.tfevents.x", "");
  TensorBoardLogger logger;
  logger.start(folder.path(), 7);
  logger.finalize(RunStatus::success);
  auto files = event_files(folder.path());
  std::erase(files, folder / "events.out.tfevents.x");
  REQUIRE(files.size() == 2);
  CHECK(files[0] == folder / later);
  CHECK(read_text(folder / later).empty());
  const auto records = read_records(files[1]);
  REQUIRE(records.size() == 3);
  for (size_t i : {1, 2}) {
    CHECK(read_event(records[i]).session_start);
    CHECK(read_event(records[i]).step == 8);
  }
}

TEST_CASE("F8: a folder that cannot be written is one warning, and events come when it can") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  write_text(folder / "blocked", "a file where the run folder should be");
  Options options;
  options.flush_every_s = 0;
  options.sub_dir = "tb";
  TensorBoardLogger logger(options);
  logger.start(folder / "blocked", 0);
  logger.log_hyperparams(some_hparams());
  logger.log_metrics({{"a", 1}}, 1);
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0],
             ContainsSubstring("logger.tensorboard_write") && ContainsSubstring("Not a directory"));
  std::filesystem::remove(folder / "blocked");
  logger.log_metrics({{"a", 2}}, 2);
  logger.finalize(RunStatus::success);
  using Tags = std::vector<std::string>;
  CHECK(tags(folder / "blocked" / "tb") ==
        Tags{"_hparams_/experiment", "_hparams_/session_start_info", "a", "a", "_hparams_/session_end_info"});
}

TEST_CASE("F8: a full disk is one warning, tears no event, and loses none that fits later") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  Options options;
  options.flush_every_s = 0;
  TensorBoardLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  // A limit on the size of files stands in for a full disk.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{std::filesystem::file_size(event_files(folder.path())[0]) + 3, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &low);
  logger.log_metrics({{"a", 2}}, 2);
  logger.log_metrics({{"a", 3}}, 3);
  const size_t meanwhile = read_events(folder.path()).size();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(meanwhile == 1);
  REQUIRE(warnings.lines().size() == 1);
  logger.log_metrics({{"a", 4}}, 4);
  const auto events = read_events(folder.path());
  REQUIRE(events.size() == 4);
  for (size_t i = 0; i < events.size(); ++i) CHECK(events[i].step == static_cast<int64_t>(i) + 1);
}

TEST_CASE("a file that can never be written ends a run without more than its warning") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  write_text(folder / "blocked", "");
  TensorBoardLogger logger;
  logger.start(folder / "blocked", std::nullopt);
  const std::string name(10000, 'n');
  for (int64_t step = 0; step < 2500; ++step) logger.log_metrics({{name, 1}}, step);  // more than may wait
  logger.finalize(RunStatus::failed);
  CHECK(warnings.lines().size() == 1);
}

TEST_CASE("TensorBoard reads scalars and hyper-parameters") {
  const TemporaryFolder folder;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  auto hparams = some_hparams();
  hparams.set("limit", ConfigNode::number(std::numeric_limits<double>::infinity()));
  logger.log_hyperparams(hparams);
  logger.log_metrics({{"train_loss", 0.5}, {"epoch", 0}}, 10);
  logger.log_metrics({{"train_loss", std::nan("")}, {"epoch", 1}}, 20);
  logger.log_metrics({{"val/acc", 0.75}, {"line\nbreak", 1}, {"bad \xff", 1}}, 20);
  logger.finalize(RunStatus::success);
  using Json = nlohmann::json;
  const Json read = tensorboard_reads(folder.path());
  CHECK(read["scalars"] == Json({{"hp_metric", {{0, -1.0}}},
                                 {"train_loss", {{10, 0.5}, {20, "nan"}}},
                                 {"epoch", {{10, 0.0}, {20, 1.0}}},
                                 {"val/acc", {{20, 0.75}}},
                                 {"line\nbreak", {{20, 1.0}}},
                                 {"bad \xef\xbf\xbd", {{20, 1.0}}}}));
  CHECK(read["served"] == read["scalars"]);
  CHECK(read["hparams"] == Json({{"hidden", 128.0},
                                 {"name", "2"},
                                 {"optimizer/lr", 0.25},
                                 {"optimizer/fused", true},
                                 {"sizes", "[1, 2]"},
                                 {"clip", "null"},
                                 {"limit", ".inf"}}));
  CHECK(read["types"]["hidden"] == "DATA_TYPE_FLOAT64");
  CHECK(read["types"]["name"] == "DATA_TYPE_STRING");
  CHECK(read["types"]["optimizer/fused"] == "DATA_TYPE_BOOL");
  CHECK(read["types"].size() == 7);
  CHECK(read["metrics"] == Json({"hp_metric"}));
  CHECK(read["status"] == "STATUS_SUCCESS");
}

TEST_CASE("TensorBoard drops the cut-off past of a resumed run") {
  const TemporaryFolder folder;
  TensorBoardLogger first;
  first.start(folder.path(), std::nullopt);
  first.log_hyperparams(some_hparams());
  for (int64_t step = 1; step <= 6; ++step) first.log_metrics({{"a", static_cast<double>(step)}, {"b", 0}}, step);
  first.finalize(RunStatus::interrupted);
  TensorBoardLogger second;
  second.start(folder.path(), 4);
  second.log_hyperparams(some_hparams());
  second.log_metrics({{"a", -5}}, 5);
  second.finalize(RunStatus::failed);
  const auto read = tensorboard_reads(folder.path());
  CHECK(read["served"] == read["scalars"]);
  CHECK(read["scalars"]["b"].size() == 4);
  CHECK(read["scalars"]["a"] == nlohmann::json({{1, 1.0}, {2, 2.0}, {3, 3.0}, {4, 4.0}, {5, -5.0}}));
  CHECK(read["scalars"]["hp_metric"] == nlohmann::json({{0, -1.0}}));
  CHECK(read["status"] == "STATUS_FAILURE");
}

}  // namespace tensorboard_logger_test
