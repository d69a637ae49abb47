#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "mlflow/http_client.h"

/// The REST API 2.0 of MLflow (mlflow.org/docs/latest/rest-api.html), as far as a logger needs it.
namespace fulgur::mlflow {

/// The server understood the request and will always refuse it.
class Refused : public Error {
 public:
  Refused(const std::string& what, std::string code) : Error(what), code_(std::move(code)) {}
  /// MLflow's error code, such as RESOURCE_DOES_NOT_EXIST.
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

struct Run {
  std::string id, experiment_id, artifact_uri;
  std::map<std::string, std::string> params;  ///< those that the server has
};

/// All functions throw Refused, or another Error if the request may succeed later.
class Client {
 public:
  /// `uri` is the address of the server, such as `http://127.0.0.1:5000`. `gives_up`: see HttpClient.
  Client(std::string uri, HttpClient::Identity identity, std::function<bool()> gives_up);

  /// The id of the experiment of that name, which is created if it is missing.
  std::string experiment_id(const std::string& name);
  /// `time_ms`: milliseconds since 1970, here and below.
  Run create_run(const std::string& experiment_id, const std::string& name, int64_t time_ms,
                 const std::map<std::string, std::string>& tags);
  Run find_run(const std::string& id);
  /// `status`: RUNNING, FINISHED, FAILED, KILLED.
  void update_run(const std::string& id, const std::string& status, std::optional<int64_t> end_time_ms);
  /// At most 1000 metrics, 100 parameters and 100 tags; each is an array of objects of the API.
  void log_batch(const std::string& run_id, const nlohmann::json& metrics, const nlohmann::json& params);
  /// Stores an artifact through the server; `path` is relative to the artifacts of the run.
  void upload(const Run& run, const std::string& path, const std::string& content);
  void upload(const Run& run, const std::string& path, const std::filesystem::path& file);

 private:
  nlohmann::json call(const char* function, const nlohmann::json& body);
  nlohmann::json ask(const std::string& function_and_query);
  nlohmann::json checked(const std::string& function, const HttpAnswer& answer) const;
  std::string artifact_url(const Run& run, const std::string& path) const;

  std::string uri_;
  HttpClient http_;
};

constexpr size_t kLongestName = 250;  ///< bytes

/// `name` as MLflow accepts it: other characters than letters, digits and `_-. :/` become `_`, and so do parts that
/// would be another path, such as `..`. At most 250 bytes.
std::string accepted_name(std::string_view name);

}  // namespace fulgur::mlflow
