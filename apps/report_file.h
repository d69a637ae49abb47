#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "fulgur/trainer/reports.h"

namespace fulgur::cli {

/// The reports as JSON; non-finite numbers become strings.
std::string report_json(const std::string& verb, const FitReport& report);
std::string report_json(const std::string& verb, const EvalReport& report);
std::string report_json(const std::string& verb, const PredictReport& report);

/// The report of a run that ended with an error, with what is known about it. `run_dir` is empty if it had none yet;
/// `fit` is what the fit had reached.
std::string failure_json(const std::string& verb, ExitCode code, std::string_view error,
                         const std::filesystem::path& run_dir, const std::optional<FitReport>& fit);

/// The report in `path` with the exit code and the error of a group of processes, if these differ.
std::string with_failure(const std::filesystem::path& path, ExitCode code, std::string_view error);

/// Throws a ConfigError that names `option` if no file can be created beside `path`, so that this is known before a
/// long run.
void check_report_path(const std::filesystem::path& path, std::string_view option = "--report");
/// Writes through a temporary file and a rename; throws an Error if that fails.
void write_report(const std::filesystem::path& path, const std::string& json);

}  // namespace fulgur::cli
