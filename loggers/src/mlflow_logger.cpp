#include "fulgur/loggers/mlflow_logger.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "media/media_file.h"
#include "mlflow/mlflow_client.h"
#include "tensorboard/events.h"
#include "tensorboard/hparams.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;
using ApiJson = nlohmann::json;

constexpr size_t kMostMetrics = 1000, kMostParams = 100;  // of one request
constexpr size_t kLongestParam = 6000;                    // bytes of a value

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The address of the server. What is shown and stored never has a password.
HttpClient::Address checked_address(const MLflowLogger::Options& options) {
  const std::string uri = options.tracking_uri.value_or(from_environment("MLFLOW_TRACKING_URI"));
  HttpClient::Address address = HttpClient::address(uri);
  const std::string shown = escape_controls(address.uri);
  if (options.tracking_uri && address.uri != uri)
    throw ConfigError(
        cat("[loggers.MLflowLogger] tracking_uri must not contain a user or a password, since configs are "
            "stored; it does, before '",
            shown, "'. Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."));
  if (address.uri.starts_with("http://") || address.uri.starts_with("https://")) return address;
  throw ConfigError(cat("[loggers.MLflowLogger] tracking_uri must be the http or https address of an MLflow server; ",
                        uri.empty() ? "it is missing" : cat("it is '", shown, "'"),
                        ". Set tracking_uri or MLFLOW_TRACKING_URI, such as http://127.0.0.1:5000."));
}

/// The variables for the identity count more than the address.
HttpClient::Identity identity_for(const HttpClient::Address& address) {
  HttpClient::Identity identity{.token = from_environment("MLFLOW_TRACKING_TOKEN"),
                                .user = from_environment("MLFLOW_TRACKING_USERNAME"),
                                .password = from_environment("MLFLOW_TRACKING_PASSWORD"),
                                .checks_certificate = from_environment("MLFLOW_TRACKING_INSECURE_TLS") != "true"};
  if (identity.token.empty() && identity.user.empty()) {
    identity.user = address.user;
    identity.password = address.password;
  }
  return identity;
}

int64_t milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

ApiJson metric_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

const char* status_text(RunStatus status) {
  if (status == RunStatus::success) return "FINISHED";
  return status == RunStatus::failed ? "FAILED" : "KILLED";
}

/// Regular files of a folder, which may be changing, in the order of their paths.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (fs::is_regular_file(entry->symlink_status(ignored))) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

struct MLflowLogger::Impl {
  explicit Impl(const Options& wanted) : Impl(wanted, checked_address(wanted)) {}
  Impl(const Options& wanted, const HttpClient::Address& address)
      : options(wanted), client(address.uri, identity_for(address), [] { return must_return(); }) {}

  const Options options;
  mlflow::Client client;
  std::optional<mlflow::Run> run;
  std::optional<std::string> resumed;  ///< id of the run of the checkpoint
  std::vector<ApiJson> waiting;        ///< metrics
  int64_t refused = 0;

  /// Calls `send`. What the server refuses for good is reported, and not tried again.
  template <class Send>
  void attempt(Send send, int64_t entries = 1) {
    try {
      send();
    } catch (const mlflow::Refused& error) {
      refused += entries;
      log::warn("logger.refused", error.what());
    }
  }

  std::string own_name(const fs::path& log_dir) const {
    if (options.run_name) return *options.run_name;
    return cat(log_dir.parent_path().filename(), "/", log_dir.filename());
  }

  /// False if the server does not know the run.
  bool continue_run(const std::string& id) {
    try {
      mlflow::Run found = client.find_run(id);
      client.update_run(id, "RUNNING", std::nullopt);
      run = std::move(found);
      return true;
    } catch (const mlflow::Refused& error) {
      log::warn("logger.mlflow_new_run", cat("[loggers.MLflowLogger] the run ", id,
                                             " must exist to be continued; a new one is created: ", error.what()));
      return false;
    }
  }

  void create_run(const fs::path& log_dir) {
    const std::string of_environment = from_environment("MLFLOW_EXPERIMENT_NAME");
    const std::string experiment =
        options.experiment_name.value_or(of_environment.empty() ? "fulgur_logs" : of_environment);
    auto tags = options.tags;
    tags.try_emplace("fulgur.run_folder", log_dir.string());
    if (const std::string user = from_environment("USER"); !user.empty()) tags.try_emplace("mlflow.user", user);
    try {
      run = client.create_run(client.experiment_id(experiment), own_name(log_dir), milliseconds(logged_at()), tags);
    } catch (const mlflow::Refused& error) {
      // Without a run nothing can be sent: a restored experiment makes the next try succeed.
      throw Error(error.what());
    }
  }

  void send_metrics() {
    while (!waiting.empty()) {
      const auto count = static_cast<std::ptrdiff_t>(std::min(waiting.size(), kMostMetrics));
      const auto end = waiting.begin() + count;
      const ApiJson batch(std::vector<ApiJson>(waiting.begin(), end));
      attempt([&] { client.log_batch(run->id, batch, ApiJson::array()); }, count);
      waiting.erase(waiting.begin(), end);
    }
  }

  void send_params(const std::map<std::string, std::string>& params) {
    ApiJson batch = ApiJson::array();
    const auto send = [&] {
      if (!batch.empty())
        attempt([&] { client.log_batch(run->id, ApiJson::array(), batch); }, static_cast<int64_t>(batch.size()));
      batch = ApiJson::array();
    };
    for (const auto& [name, value] : params) {
      const auto known = run->params.find(name);
      if (known != run->params.end()) {
        if (known->second != value)
          log::warn("logger.mlflow_param",
                    cat("[loggers.MLflowLogger] MLflow keeps the first value of a parameter; '", name, "' stays '",
                        escape_controls(known->second), "' and is now '", escape_controls(value), "'."));
        continue;
      }
      batch.push_back({{"key", name}, {"value", value}});
      if (batch.size() == kMostParams) send();
    }
    send();
    for (const auto& [name, value] : params) run->params.try_emplace(name, value);
  }

  /// Uploads a file, or the files of a folder, under `name`.
  void upload(const fs::path& path, const std::string& name) {
    std::error_code error;
    if (!fs::exists(path, error)) {
      ++refused;
      log::warn("logger.artifact_gone", cat("[loggers.MLflowLogger] an artifact must exist until it is sent; ", path,
                                            " was removed before. Keep it until the end of the run."));
      return;
    }
    if (!fs::is_directory(path, error)) return attempt([&] { client.upload(*run, name, path); });
    for (const fs::path& file : files_in(path)) {
      // A checkpoint that is replaced is removed while it is read.
      if (!fs::exists(file, error)) continue;
      attempt([&] { client.upload(*run, cat(name, "/", file.lexically_relative(path)), file); });
    }
  }
};

void MLflowLogger::Options::fields(Fields& f) {
  f(tracking_uri, "tracking_uri", "Address of the MLflow server; null: MLFLOW_TRACKING_URI.");
  f(experiment_name, "experiment_name",
    "Experiment of the run, created if it is missing; null: MLFLOW_EXPERIMENT_NAME, or else fulgur_logs.");
  f(run_name, "run_name", "Name of the run in MLflow; null: that of the run folder, such as fulgur_logs/version_0.");
  f(run_id, "run_id", "Id of a run of MLflow to continue; null: a new run, or that of the checkpoint.");
  f(tags, "tags", "Tags of a new run.");
  f(log_model, "log_model",
    "Checkpoints that are stored as artifacts: best (each new best one, as checkpoints/best), all, or false.");
}

MLflowLogger::MLflowLogger(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
MLflowLogger::~MLflowLogger() = default;

StateTree MLflowLogger::state() {
  if (!impl_->run) return nullptr;
  return StateTree::map({{"run_id", impl_->run->id}, {"experiment_id", impl_->run->experiment_id}});
}

void MLflowLogger::load_state(const StateTree& state) { impl_->resumed = state.at("run_id").as_string(); }

void MLflowLogger::start(const std::filesystem::path& log_dir, std::optional<int64_t>) {
  // A logger that has a run is in another stage of it, such as test after fit.
  std::optional<std::string> id = impl_->options.run_id;
  if (!id) id = impl_->resumed;
  if (!id && impl_->run) id = impl_->run->id;
  if (!id || !impl_->continue_run(*id)) impl_->create_run(log_dir);
  impl_->resumed.reset();
}

void MLflowLogger::log_hyperparams(const ConfigNode& hparams) {
  std::map<std::string, std::string> params;
  for (const auto& [name, text] : tensorboard::hparam_texts(hparams))
    params[mlflow::accepted_name(name)] = tensorboard::as_utf8(text.substr(0, kLongestParam));
  impl_->send_params(params);
}

void MLflowLogger::log_metrics(const Metrics& metrics, int64_t step) {
  // Before anything is added: if this throws, the row is logged again.
  if (impl_->waiting.size() + metrics.size() > kMostMetrics) impl_->send_metrics();
  const int64_t time = milliseconds(logged_at());
  for (const auto& [name, value] : metrics)
    impl_->waiting.push_back(
        {{"key", mlflow::accepted_name(name)}, {"value", metric_value(value)}, {"timestamp", time}, {"step", step}});
}

void MLflowLogger::log_media(const MediaRecord& record, int64_t step) {
  const MediaFile file = media_file(record, step);
  impl_->attempt([&] { impl_->client.upload(*impl_->run, file.path.string(), file.content); });
}

void MLflowLogger::log_artifact(const std::filesystem::path& path) {
  impl_->upload(path, path.has_filename() ? path.filename() : path.parent_path().filename());
}

void MLflowLogger::after_save_checkpoint(const CheckpointInfo& info) {
  if (impl_->options.log_model == MLflowModels::all)
    impl_->upload(info.path, cat("checkpoints/", info.path.filename()));
  else if (impl_->options.log_model == MLflowModels::best && info.request.best)
    impl_->upload(info.path, "checkpoints/best");
}

void MLflowLogger::flush() {
  if (impl_->run) impl_->send_metrics();
}

void MLflowLogger::finalize(RunStatus status) noexcept {
  try {
    if (impl_->refused > 0)
      log::error(cat("[loggers.MLflowLogger] ", impl_->refused,
                     " values or files were refused by the server, or gone, and are lost; see the warnings above."));
    impl_->refused = 0;
    impl_->waiting.clear();  // they are reported as lost
    if (impl_->run)
      impl_->client.update_run(impl_->run->id, status_text(status), milliseconds(std::chrono::system_clock::now()));
  } catch (const std::exception& error) {
    try {
      log::error(cat("[loggers.MLflowLogger] the status of the run is not set: ", first_line(error.what())));
    } catch (...) {
      // If this cannot be shown, the run still ends normally.
    }
  }
}

[[maybe_unused]] static const bool registered_mlflow_logger = Registry<Logger>::add<MLflowLogger>(
    "MLflowLogger", "Metrics, hyper-parameters, media and checkpoints for an MLflow server.");

}  // namespace fulgur
