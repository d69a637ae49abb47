// Pictures, histograms, texts, tables and artifacts of the loggers that write files.
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "loggers/hostile_names.h"
#include "loggers/png_reader.h"
#include "loggers/warnings.h"
#include "media/media_file.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace media_files_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEMPLATE_TEST_CASE("media become files of their kind, named by name and step", "", CsvLogger, JsonlLogger) {
  const TemporaryFolder folder;
  TestType logger;
  logger.start(folder.path(), std::nullopt);
  for (int64_t channels = 1; channels <= 4; ++channels) {
    const Tensor pixels = at::randint(256, {channels, 5, 3}, at::kByte);
    logger.log_media(ImageRecord{"val/picture", pixels}, channels);
    CHECK(read_png(read_text(folder / ("media/val/picture/step=" + std::to_string(channels) + ".png"))).equal(pixels));
  }
  logger.log_media(TextRecord{"note", "a\nb"}, 7);
  CHECK(read_text(folder / "media/note/step=7.txt") == "a\nb");
  logger.log_media(TableRecord{"t", {"", "a,b"}, {{std::string("x"), 0.5}, {int64_t{3}, std::nan("")}}}, 8);
  CHECK(read_text(folder / "media/t/step=8.csv") == ",\"a,b\"\nx,0.5\n3,nan\n");
  const double infinity = std::numeric_limits<double>::infinity();
  logger.log_media(HistogramRecord{"h", at::tensor({1.0, 1.05, -3.0, infinity, 0.0})}, 9);
  const auto histogram = nlohmann::json::parse(read_text(folder / "media/h/step=9.json"));
  CHECK(histogram["num"] == 4);
  CHECK(histogram["nonfinite"] == 1);
  CHECK(histogram["min"] == -3.0);
  CHECK(histogram["max"] == 1.05);
  double counted = 0;
  for (const auto& count : histogram["counts"]) counted += count.template get<double>();
  CHECK(counted == 4);
  CHECK(histogram["limits"].size() == histogram["counts"].size());
  logger.log_media(TextRecord{"note", "again"}, 7);  // the last one counts
  CHECK(read_text(folder / "media/note/step=7.txt") == "again");
  logger.finalize(RunStatus::success);
}

TEST_CASE("a histogram of values that are not finite has no buckets") {
  const MediaFile file = media_file(HistogramRecord{"h", at::full({3}, std::nan(""))}, 1);
  CHECK(file.content == "{\"num\":0,\"nonfinite\":3,\"limits\":[],\"counts\":[]}\n");
}

TEMPLATE_TEST_CASE("a resumed run removes media of later steps and replaces those of its own", "", CsvLogger,
                   JsonlLogger) {
  const TemporaryFolder folder;
  {
    TestType first;
    first.start(folder.path(), std::nullopt);
    for (int64_t step : {4, 5, 6}) first.log_media(TextRecord{"a/b", "first"}, step);
    first.finalize(RunStatus::interrupted);
  }
  write_text(folder / "media/a/mine.txt", "precious");
  write_text(folder / "media/a/step=9.old", "precious");
  TestType second;
  second.start(folder.path(), 5);
  CHECK(read_text(folder / "media/a/b/step=4.txt") == "first");
  CHECK(read_text(folder / "media/a/b/step=5.txt") == "first");
  CHECK_FALSE(std::filesystem::exists(folder / "media/a/b/step=6.txt"));
  CHECK(read_text(folder / "media/a/mine.txt") == "precious");
  CHECK(read_text(folder / "media/a/step=9.old") == "precious");
  second.log_media(TextRecord{"a/b", "second"}, 5);
  CHECK(read_text(folder / "media/a/b/step=5.txt") == "second");
  TestType again;
  again.start(folder.path(), -1);  // a fit that begins again
  CHECK_FALSE(std::filesystem::exists(folder / "media/a/b/step=4.txt"));
}

TEST_CASE("F47: hostile names of media stay inside their folder, each with its own file") {
  const TemporaryFolder folder;
  auto names = hostile_names();
  names.insert(names.end(), {"..", ".", "/", "a//b", "../../out", "/etc/x", "a/../b", std::string("n\0l", 3), "\xff",
                             "%2E.", std::string(300, 'n'), std::string(300, 'n') + "m", "step=1.txt", "a\nb", "ü"});
  std::set<std::filesystem::path> paths;
  std::set<std::string> different(names.begin(), names.end());
  JsonlLogger logger;
  logger.start(folder / "run", std::nullopt);
  for (const std::string& name : different) {
    if (name.empty()) continue;  // refused before
    const MediaFile file = media_file(TextRecord{name, name}, 1);
    CHECK(file.path.lexically_normal() == file.path);
    CHECK(file.path.string().starts_with("media/"));
    CHECK(paths.insert(file.path).second);
    logger.log_media(TextRecord{name, name}, 1);
    CHECK(read_text(folder / "run" / file.path) == name);
  }
  logger.finalize(RunStatus::success);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("F44: links in place of the folder of media are not followed") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  std::filesystem::create_directories(folder / "run");
  std::filesystem::create_directories(folder / "outside");
  write_text(folder / "outside/step=9.txt", "precious");
  std::filesystem::create_directory_symlink(folder / "outside", folder / "run/media");
  std::filesystem::create_directory_symlink(folder / "outside", folder / "run/artifacts");
  CsvLogger logger;
  logger.start(folder / "run", 1);
  logger.log_media(TextRecord{"a", "text"}, 1);
  logger.log_artifact(folder / "outside/step=9.txt");
  logger.finalize(RunStatus::success);
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "outside"), {}) == 1);
  CHECK(read_text(folder / "outside/step=9.txt") == "precious");
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.media_write") && ContainsSubstring("is a link"));
}

TEST_CASE("F8: media that cannot be written are one warning, and are written when they can") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  write_text(folder / "media", "a file where the folder should be");
  logger.log_media(TextRecord{"a", "one"}, 1);
  logger.log_media(TextRecord{"a", "two"}, 2);
  REQUIRE(warnings.lines().size() == 1);
  std::filesystem::remove(folder / "media");
  logger.flush();
  CHECK(read_text(folder / "media/a/step=1.txt") == "one");
  CHECK(read_text(folder / "media/a/step=2.txt") == "two");
  logger.finalize(RunStatus::success);
  CHECK(warnings.lines().size() == 1);
}

TEST_CASE("a media file that can never be written does not hold up the others, and gives way to its successor") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  std::filesystem::create_directory(folder / "media");
  write_text(folder / "media/a", "a file where a folder should be");
  logger.log_media(TextRecord{"a", "one"}, 1);
  logger.log_media(TextRecord{"b", "two"}, 1);
  CHECK(read_text(folder / "media/b/step=1.txt") == "two");
  logger.log_media(TextRecord{"a", "newer"}, 1);
  CHECK(warnings.lines().size() == 1);
  std::filesystem::remove(folder / "media/a");
  logger.finalize(RunStatus::success);
  CHECK(read_text(folder / "media/a/step=1.txt") == "newer");
}

TEST_CASE("artifacts of the same name from different folders are all kept") {
  const TemporaryFolder folder;
  for (const char* made : {"x", "y", "z"}) {
    std::filesystem::create_directories(folder / made / std::string("plots"));
    write_text(folder / made / std::string("a.b.txt"), made);
  }
  std::filesystem::create_directory(folder / "run");
  JsonlLogger logger;
  logger.start(folder / "run", std::nullopt);
  for (const char* made : {"x", "y", "x", "z"}) {
    logger.log_artifact(folder / made / std::string("a.b.txt"));
    logger.log_artifact(folder / made / std::string("plots/"));
  }
  write_text(folder / "y" / std::string("a.b.txt"), "newer");
  logger.log_artifact(folder / "y" / std::string("../y/a.b.txt"));
  CHECK(read_text(folder / "run/artifacts/a.b.txt") == "x");
  CHECK(read_text(folder / "run/artifacts/a.b-v1.txt") == "newer");
  CHECK(read_text(folder / "run/artifacts/a.b-v2.txt") == "z");
  for (const char* name : {"plots", "plots-v1", "plots-v2"})
    CHECK(std::filesystem::is_directory(folder / "run/artifacts" / std::string(name)));
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "run/artifacts"), {}) == 6);
}

TEST_CASE("artifacts are copied into the run folder") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "made/deep");
  std::filesystem::create_directories(folder / "run");
  write_text(folder / "made/deep/a.txt", "a");
  write_text(folder / "made/b.txt", "b");
  write_text(folder / "run/own.txt", "own");
  JsonlLogger logger;
  logger.start(folder / "run", std::nullopt);
  logger.log_artifact(folder / "made/b.txt");
  logger.log_artifact(folder / "made");
  CHECK(read_text(folder / "run/artifacts/b.txt") == "b");
  CHECK(read_text(folder / "run/artifacts/made/deep/a.txt") == "a");
  std::filesystem::remove(folder / "made/deep/a.txt");
  logger.log_artifact(folder / "made");  // replaces the folder
  CHECK_FALSE(std::filesystem::exists(folder / "run/artifacts/made/deep/a.txt"));
  CHECK(read_text(folder / "run/artifacts/made/b.txt") == "b");
  logger.log_artifact(folder / "run/own.txt");  // is there already
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "run/artifacts"), {}) == 2);
  logger.log_artifact(folder.path());  // contains the run folder: reported, not copied
  logger.log_artifact(folder / "nowhere");
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "run/artifacts"), {}) == 2);
  logger.finalize(RunStatus::success);
}

TEST_CASE("media before start are an error that names the function") {
  CHECK_THAT(message_of<Error>([] { CsvLogger().log_media(TextRecord{"a", "b"}, 1); }), ContainsSubstring("log_media"));
  CHECK_THAT(message_of<Error>([] { JsonlLogger().log_artifact("a"); }), ContainsSubstring("log_artifact"));
}

}  // namespace media_files_test
