// A resume cuts a logger's file only when it can read and write it; until then no earlier row is lost.
#include <sys/resource.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <csignal>

#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "loggers/warnings.h"
#include "support/temporary_folder.h"

namespace late_cut_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

/// A limit on the size of files stands in for a full disk.
class FullDisk {
 public:
  FullDisk() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

/// A file that cannot be read during its lifetime: in its place is a link to itself.
class Unreadable {
 public:
  explicit Unreadable(std::filesystem::path path) : path_(std::move(path)) {
    std::filesystem::rename(path_, aside());
    std::filesystem::create_symlink(path_, path_);
  }
  ~Unreadable() {
    std::filesystem::remove(path_);
    std::filesystem::rename(aside(), path_);
  }
  Unreadable(const Unreadable&) = delete;
  Unreadable& operator=(const Unreadable&) = delete;

 private:
  std::string aside() const { return path_.string() + ".aside"; }
  std::filesystem::path path_;
};

/// The first part of a run: four rows, and the state after the second.
template <class L>
StateTree write_first_part(const std::filesystem::path& folder) {
  StateTree state;
  L first;
  first.start(folder, std::nullopt);
  for (int64_t step = 1; step <= 4; ++step) {
    first.log_metrics({{"epoch", 0}, {"a", static_cast<double>(step)}}, step);
    if (step == 2) state = first.state();
  }
  first.finalize(RunStatus::interrupted);
  return state;
}

std::filesystem::path file_in(const std::filesystem::path& folder) {
  return std::filesystem::directory_iterator(folder)->path();
}

}  // namespace

TEMPLATE_TEST_CASE("a resume while the disk is full, or the file is unreadable, loses no earlier row", "", CsvLogger,
                   JsonlLogger) {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  const std::string cut = GENERATE("exactly", "by step", "inside"),
                    trouble = GENERATE("none", "full", "unreadable", "elsewhere");
  CAPTURE(cut, trouble);
  StateTree state = write_first_part<TestType>(folder / "run");
  const auto path = file_in(folder / "run");
  if (cut == "inside") {  // what is kept does not begin the file
    const std::string text = read_text(path);
    write_text(path, text.substr(0, text.find('\n') + 1) + "torn\n" + text.substr(text.find('\n') + 1));
  }
  TestType second;
  if (cut == "exactly") second.load_state(state);
  const auto log_next = [&] {
    second.start(folder / "run", 2);
    second.log_metrics({{"epoch", 0}, {"b", 7}}, 3);
  };
  if (trouble == "none") {
    log_next();
  } else if (trouble == "full") {
    const FullDisk full;
    log_next();
  } else if (trouble == "elsewhere") {  // such as a folder that is not mounted yet
    std::filesystem::rename(folder / "run", folder / "aside");
    write_text(folder / "run", "a file where the run folder should be");
    log_next();
    std::filesystem::remove(folder / "run");
    std::filesystem::rename(folder / "aside", folder / "run");
  } else {
    const Unreadable unreadable(path);
    log_next();
  }
  CHECK(warnings.lines().empty() == (trouble == "none"));
  second.log_metrics({{"a", 8}, {"b", 9}}, 4);
  state = second.state();
  second.finalize(RunStatus::success);
  const bool is_csv = std::is_same_v<TestType, CsvLogger>;
  CHECK(read_text(path) == (is_csv ? "step,epoch,a,b\n1,0,1.0,\n2,0,2.0,\n3,0,,7.0\n4,,8.0,9.0\n"
                                   : "{\"step\":1,\"epoch\":0,\"a\":1.0}\n{\"step\":2,\"epoch\":0,\"a\":2.0}\n"
                                     "{\"step\":3,\"epoch\":0,\"b\":7.0}\n{\"step\":4,\"a\":8.0,\"b\":9.0}\n"));
  CHECK(state.at("bytes").as_uint() == std::filesystem::file_size(path));
}

TEMPLATE_TEST_CASE("a file that a resume could not cut by the end of the run is as it was", "", CsvLogger,
                   JsonlLogger) {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  write_first_part<TestType>(folder / "run");
  const auto path = file_in(folder / "run");
  const std::string before = read_text(path);
  {
    const Unreadable unreadable(path);
    TestType second;
    second.start(folder / "run", 2);
    second.log_metrics({{"a", 7}}, 3);
    CHECK(second.state().is_null());
    second.finalize(RunStatus::failed);
  }
  CHECK(read_text(path) == before);
}

TEST_CASE("a table that cannot be read when a column is added keeps its rows") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  CsvLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  {
    const Unreadable unreadable(folder / "metrics.csv");
    logger.log_metrics({{"b", 2}}, 2);
    CHECK(warnings.lines().size() == 1);
  }
  logger.finalize(RunStatus::success);
  CHECK(read_text(folder / "metrics.csv") == "step,epoch,a,b\n1,,1.0,\n2,,,2.0\n");
}

}  // namespace late_cut_test
