#include "tuning/grouped_trial.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include "failure.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "report_file.h"

namespace fulgur::cli {
namespace {

constexpr const char* kVariable = "FULGUR_TUNE_TRIAL";  // BATCH_SIZE:FOLDER
constexpr const char* kOutOfMemory = "out_of_memory";
constexpr const char* kDataError = "data_error";  // its message
constexpr const char* kReport = "report";

/// A new folder that is removed with its files.
class OwnFolder {
 public:
  OwnFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fulgur-tune-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw Error(cat("[tune.batch_size] no folder can be created in ", std::filesystem::temp_directory_path(),
                      ", where the processes of a trial leave their result. Set TMPDIR to a folder that can be "
                      "written."));
    path_ = name;
  }
  ~OwnFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::optional<GroupedTrial> trial_of_process() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr) return std::nullopt;
  const std::string_view whole(text);
  const size_t colon = whole.find(':');
  const auto size = parse_whole<int64_t>(whole.substr(0, colon));
  if (!size || colon == std::string_view::npos) return std::nullopt;
  return GroupedTrial{.batch_size = *size, .folder = std::string(whole.substr(colon + 1))};
}

namespace {

// Another rank that runs out of memory or of data says so as soon as it has ended its run, which this rank may notice
// before.
bool other_has_ended(const GroupedTrial& trial) {
  for (int i = 0; i < 40; ++i) {
    if (std::filesystem::exists(trial.folder / kOutOfMemory) || std::filesystem::exists(trial.folder / kDataError))
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

}  // namespace

ExitCode run_grouped_trial(const GroupedTrial& trial, const Config& config, int64_t steps, bool first_rank) {
  BatchTrialReport report;
  try {
    report = try_batch_size(config, trial.batch_size, steps, /*several=*/true);
  } catch (const DistributedError&) {
    if (!other_has_ended(trial)) throw;
    return ExitCode::distributed;
  } catch (const DataError& error) {
    // It may be the result of the trial: `launch_trial` throws it.
    write_report(trial.folder / kDataError, error.what());
    return error.code();  // ends the group
  }
  if (report.result == BatchTrial::out_of_memory) {
    std::ofstream(trial.folder / kOutOfMemory).close();
    return ExitCode::other;  // ends the group
  }
  if (first_rank)
    write_report(trial.folder / kReport,
                 cat(report.result == BatchTrial::fits, " ", report.peak_bytes, " ", report.device, "\n"));
  return ExitCode::ok;
}

BatchTrialReport launch_trial(int64_t batch_size, const LaunchOptions& launched,
                              const std::vector<std::string>& arguments) {
  const OwnFolder folder;
  ::setenv(kVariable, cat(batch_size, ":", folder.path()).c_str(), /*overwrite=*/1);
  const LaunchReport group = launch(launched, arguments);
  ::unsetenv(kVariable);
  BatchTrialReport report;
  if (std::filesystem::exists(folder.path() / kOutOfMemory)) {
    report.result = BatchTrial::out_of_memory;
    return report;
  }
  if (std::ifstream file(folder.path() / kDataError); file)
    throw DataError(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!group.message.empty()) throw LaunchFailure(group);
  std::ifstream file(folder.path() / kReport);
  std::string fits;
  if (!(file >> fits >> report.peak_bytes >> report.device))
    throw Error("[tune.batch_size] the processes of the trial ended without a result; a signal may have ended them.",
                group.exit_code != 0 ? static_cast<ExitCode>(group.exit_code) : ExitCode::other);
  if (fits != "true") report.result = BatchTrial::no_such_batch;
  return report;
}

}  // namespace fulgur::cli
