#include "report_file.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/new_file.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "json_text.h"

namespace fulgur::cli {

namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}

Json metrics_of(const Metrics& metrics) {
  Json out = Json::object();
  for (const auto& [name, value] : metrics) out[name] = number(value);
  return out;
}

Json path_of(const std::optional<std::filesystem::path>& path) {
  return path && !path->empty() ? Json(std::filesystem::absolute(*path).lexically_normal().string()) : Json(nullptr);
}

Json text_or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(nullptr); }

// The contents of every fit report, also of a failed fit.
void add_reached(Json& json, const FitReport& report) {
  json["metrics"] = metrics_of(report.metrics);
  json["stop_reason"] = report.stop_reason;
  json["epochs"] = report.epochs;
  json["global_step"] = report.global_step;
  json["train_seconds"] = number(report.train_seconds);
}

Json start(const std::string& verb, ExitCode code) {
  return Json{{"verb", verb}, {"exit_code", static_cast<int>(code)}};
}

}  // namespace

std::string report_json(const std::string& verb, const FitReport& report) {
  Json json = start(verb, report.exit_code);
  add_reached(json, report);
  json["peak_memory"] = Json::array();
  for (const PeakMemory& peak : report.peak_memory)
    json["peak_memory"].push_back({{"rank", peak.rank}, {"device", peak.device}, {"bytes", peak.bytes}});
  json["captured_batches"] = report.captured_batches;
  json["not_captured"] = text_or_null(report.not_captured);
  json["captured_validation_batches"] = report.captured_validation_batches;
  json["validation_not_captured"] = text_or_null(report.validation_not_captured);
  json["logger_losses"] = report.logger_losses;
  json["run_dir"] = path_of(report.run_dir);
  json["last_checkpoint"] = path_of(report.last_checkpoint);
  json["best_checkpoint"] = path_of(report.best_checkpoint);
  return json_text(json);
}

std::string report_json(const std::string& verb, const EvalReport& report) {
  Json json = start(verb, report.exit_code);
  json["metrics"] = Json::object();
  json["loaders"] = Json::array();
  for (const Metrics& loader : report.loaders) {
    json["metrics"].update(metrics_of(loader));
    json["loaders"].push_back(metrics_of(loader));
  }
  json["samples"] = report.samples;
  json["seconds"] = number(report.seconds);
  json["captured_batches"] = report.captured_batches;
  json["not_captured"] = text_or_null(report.not_captured);
  json["run_dir"] = path_of(report.run_dir);
  json["checkpoint"] = path_of(report.checkpoint);
  return json_text(json);
}

std::string report_json(const std::string& verb, const PredictReport& report) {
  Json json = start(verb, report.exit_code);
  json["files"] = Json::array();
  for (const std::filesystem::path& file : report.files) json["files"].push_back(path_of(file));
  json["samples"] = report.samples;
  json["captured_batches"] = report.captured_batches;
  json["not_captured"] = text_or_null(report.not_captured);
  json["run_dir"] = path_of(report.run_dir);
  json["checkpoint"] = path_of(report.checkpoint);
  return json_text(json);
}

std::string failure_json(const std::string& verb, ExitCode code, std::string_view error,
                         const std::filesystem::path& run_dir, const std::optional<FitReport>& fit) {
  const auto target = [&](const char* name) {
    return run_dir.empty() ? std::nullopt : link_target(run_dir / run_layout::kCheckpoints / name);
  };
  Json json = start(verb, code);
  json["error"] = std::string(error);
  if (fit) add_reached(json, *fit);
  // The folder of a fit that a mistake in its config has ended before its first batch is removed.
  std::error_code none;
  json["run_dir"] = std::filesystem::exists(run_dir, none) ? path_of(run_dir) : Json(nullptr);
  json["last_checkpoint"] = path_of(target(run_layout::kLast));
  json["best_checkpoint"] = path_of(target(run_layout::kBest));
  return json_text(json);
}

std::string with_failure(const std::filesystem::path& path, ExitCode code, std::string_view error) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto written = json.is_object() ? json.find("exit_code") : json.end();
  if (written == json.end() || *written == static_cast<int>(code)) return text;
  *written = static_cast<int>(code);
  json["error"] = std::string(error);
  return json_text(json);
}

void check_report_path(const std::filesystem::path& path, std::string_view option) {
  const std::filesystem::path temporary = detail::unused_sibling(path);
  const bool good = !std::filesystem::is_directory(path) && std::ofstream(temporary).good();
  const int error = errno;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  if (!good) {
    throw ConfigError(cat("[cli] ", option, " needs a path where a file can be created; got '", path, "' (",
                          std::filesystem::is_directory(path) ? "a folder" : std::strerror(error), ")"));
  }
}

void write_report(const std::filesystem::path& path, const std::string& json) {
  const std::filesystem::path temporary = detail::unused_sibling(path);
  std::ofstream file(temporary, std::ios::binary);
  file << json;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw Error(
        cat("[cli] the report '", path, "' could not be written: ", error ? error.message() : std::strerror(errno)));
  }
}

}  // namespace fulgur::cli
