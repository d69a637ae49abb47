#include "mlflow/mlflow_client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fulgur/core/text/text.h"

namespace fulgur::mlflow {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kArtifactScheme = "mlflow-artifacts:";

std::string text_at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Run run_of(const Json& answer) {
  const Json& run = answer.at("run");
  const Json& info = run.at("info");
  Run out{.id = info.at("run_id").get<std::string>(),
          .experiment_id = info.at("experiment_id").get<std::string>(),
          .artifact_uri = text_at(info, "artifact_uri"),
          .params = {}};
  if (run.contains("data") && run["data"].contains("params"))
    for (const Json& param : run["data"]["params"]) out.params[text_at(param, "key")] = text_at(param, "value");
  return out;
}

Json pairs_of(const std::map<std::string, std::string>& map) {
  Json pairs = Json::array();
  for (const auto& [key, value] : map) pairs.push_back({{"key", key}, {"value", value}});
  return pairs;
}

// The answers that no repetition changes. 401 and 403 are not among them: permissions may be granted.
bool is_final(int64_t status) { return status == 400 || status == 404 || status == 413 || status == 422; }

}  // namespace

Client::Client(std::string uri, HttpClient::Identity identity, std::function<bool()> gives_up)
    : uri_(std::move(uri)), http_(std::move(identity), std::move(gives_up)) {
  while (uri_.ends_with('/')) uri_.pop_back();
}

Json Client::checked(const std::string& function, const HttpAnswer& answer) const {
  const Json body = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  // The answer to an upload is empty.
  if (answer.status / 100 == 2 && (answer.body.empty() || !body.is_discarded())) return body;
  const std::string code = text_at(body, "error_code"), message = text_at(body, "message");
  const std::string what =
      cat("[loggers.MLflowLogger] the server must accept ", function, "; it answered ", answer.status,
          code.empty() ? "" : cat(" ", code), message.empty() ? "" : cat(": ", first_line(message)),
          ". See the log of the server at ", uri_, ".");
  if (is_final(answer.status)) throw Refused(what, code);
  throw Error(what);
}

Json Client::call(const char* function, const Json& body) {
  return checked(function, http_.post_json(cat(uri_, "/api/2.0/mlflow/", function), dumped(body)));
}

Json Client::ask(const std::string& function_and_query) {
  return checked(function_and_query, http_.get(cat(uri_, "/api/2.0/mlflow/", function_and_query)));
}

std::string Client::experiment_id(const std::string& name) {
  try {
    return ask(cat("experiments/get-by-name?experiment_name=", HttpClient::escaped(name)))
        .at("experiment")
        .at("experiment_id")
        .get<std::string>();
  } catch (const Refused& refused) {
    if (refused.code() != "RESOURCE_DOES_NOT_EXIST") throw;
  }
  return call("experiments/create", {{"name", name}}).at("experiment_id").get<std::string>();
}

Run Client::create_run(const std::string& experiment_id, const std::string& name, int64_t time_ms,
                       const std::map<std::string, std::string>& tags) {
  return run_of(
      call("runs/create",
           {{"experiment_id", experiment_id}, {"run_name", name}, {"start_time", time_ms}, {"tags", pairs_of(tags)}}));
}

Run Client::find_run(const std::string& id) { return run_of(ask(cat("runs/get?run_id=", HttpClient::escaped(id)))); }

void Client::update_run(const std::string& id, const std::string& status, std::optional<int64_t> end_time_ms) {
  Json body = {{"run_id", id}, {"status", status}};
  if (end_time_ms) body["end_time"] = *end_time_ms;
  call("runs/update", body);
}

void Client::log_batch(const std::string& run_id, const Json& metrics, const Json& params) {
  call("runs/log-batch", {{"run_id", run_id}, {"metrics", metrics}, {"params", params}});
}

std::string Client::artifact_url(const Run& run, const std::string& path) const {
  std::string_view root = run.artifact_uri;
  if (!root.starts_with(kArtifactScheme))
    throw Refused(cat("[loggers.MLflowLogger] artifacts must be stored by the server; those of this run are at '",
                      run.artifact_uri, "'. Start the server with --serve-artifacts, or --artifacts-destination."),
                  "");
  root.remove_prefix(kArtifactScheme.size());
  // mlflow-artifacts://HOST/PATH names the same server.
  if (root.starts_with("//")) root.remove_prefix(std::min(root.find('/', 2), root.size()));
  while (root.starts_with('/')) root.remove_prefix(1);
  return cat(uri_, "/api/2.0/mlflow-artifacts/artifacts/", HttpClient::escaped_path(cat(root, "/", path)));
}

void Client::upload(const Run& run, const std::string& path, const std::string& content) {
  checked(cat("the artifact ", path), http_.put_bytes(artifact_url(run, path), content));
}

void Client::upload(const Run& run, const std::string& path, const std::filesystem::path& file) {
  if (::access(file.c_str(), R_OK) != 0)
    throw Refused(cat("[loggers.MLflowLogger] an artifact must be readable; ", file, " is not. Check its permissions."),
                  "");
  checked(cat("the artifact ", path), http_.put_file(artifact_url(run, path), file));
}

std::string accepted_name(std::string_view name) {
  std::string out;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    std::string part;
    for (const char c : name.substr(begin, end - begin)) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         std::string_view("_-. :").find(c) != std::string_view::npos;
      part += plain ? c : '_';
    }
    if (part.empty() || part == "." || part == "..") part = std::string(std::max<size_t>(part.size(), 1), '_');
    out += out.empty() ? part : cat("/", part);
    begin = end + 1;
  }
  if (out.size() > kLongestName) out.resize(kLongestName);
  if (out.ends_with('/')) out.back() = '_';
  return out;
}

}  // namespace fulgur::mlflow
