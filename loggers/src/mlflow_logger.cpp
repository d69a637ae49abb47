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
#include "media/artifact_names.h"
#include "media/media_file.h"
#include "mlflow/accepted_names.h"
#include "mlflow/mlflow_client.h"
#include "tensorboard/events.h"
#include "tensorboard/hparams.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;
using ApiJson = nlohmann::json;

constexpr size_t kMostMetrics = 1000, kMostParams = 100;  // of one request
constexpr size_t kLongestParam = 6000;                    // bytes of a value
constexpr size_t kMostAlone = 10;                         // entries that are refused one by one, in a row
constexpr int kMostTries = 5;                             // of an upload, while the server answers other requests

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

fs::path manifest_of(const fs::path& checkpoint) { return checkpoint / "manifest.json"; }

/// Regular files of a folder, which may be changing, in the order of their paths. The manifest, which says that a
/// checkpoint is complete, is the last.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (fs::is_regular_file(entry->symlink_status(ignored))) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  std::stable_partition(files.begin(), files.end(), [&](const fs::path& file) { return file != manifest_of(folder); });
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
  mlflow::AcceptedNames metric_names, param_names;
  ArtifactNames artifact_names;
  // Of the entry that is tried, which may be tried again as a whole: tries by name, and what is stored already.
  std::map<std::string, int> failed_uploads;
  std::map<std::string, fs::file_time_type> stored_files;

  void report_refused(const std::string& what, size_t entries = 1) {
    refused += static_cast<int64_t>(entries);
    log::warn("logger.refused", what);
  }

  /// Sends `entries` in batches of at most `most`, and erases those that need not be sent again. A refused batch is
  /// halved, so that an entry that the server does not accept costs no other.
  template <class Send>
  void send_all(std::vector<ApiJson>& entries, size_t most, Send send) {
    size_t size = most, alone = 0;
    while (!entries.empty()) {
      // If the server accepts nothing at all, single requests would only take time.
      const bool halves = alone < kMostAlone;
      const size_t count = std::min(entries.size(), halves ? size : most);
      const auto end = entries.begin() + static_cast<std::ptrdiff_t>(count);
      try {
        send(ApiJson(std::vector<ApiJson>(entries.begin(), end)));
        size = std::min(2 * count, most);
        alone = 0;
      } catch (const mlflow::Refused& error) {
        if (halves && count > 1) {
          size = count / 2;
          continue;
        }
        report_refused(error.what(), count);
        ++alone;
      }
      entries.erase(entries.begin(), end);
    }
  }

  /// Calls `send`, which uploads an artifact; false if it is lost. An artifact that fails again and again while the
  /// server answers other requests is given up: it must not hold up all that is logged after it.
  template <class Send>
  bool attempt(const std::string& name, Send send) {
    if (failed_uploads[name] >= kMostTries) return false;
    try {
      send();
      return true;
    } catch (const mlflow::Refused& error) {
      failed_uploads[name] = kMostTries;
      report_refused(error.what());
    } catch (const Error& error) {
      require_answer();
      if (++failed_uploads[name] < kMostTries) throw;
      report_refused(error.what());
    }
    return false;
  }

  /// Throws an Error if the server answers no request at the moment.
  void require_answer() {
    try {
      client.find_run(run->id);
    } catch (const mlflow::Refused&) {
      // This is an answer, too.
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
                                             " must exist to be continued; another one is used: ", error.what()));
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
    send_all(waiting, kMostMetrics, [&](const ApiJson& batch) { client.log_batch(run->id, batch, ApiJson::array()); });
  }

  void send_params(const std::map<std::string, std::string>& params) {
    std::vector<ApiJson> entries;
    for (const auto& [name, value] : params) {
      const auto known = run->params.find(name);
      if (known != run->params.end()) {
        if (known->second != value)
          log::warn("logger.mlflow_param",
                    cat("[loggers.MLflowLogger] MLflow keeps the first value of a parameter; '", name, "' stays '",
                        escape_controls(known->second), "' and is now '", escape_controls(value), "'."));
        continue;
      }
      entries.push_back({{"key", name}, {"value", value}});
    }
    send_all(entries, kMostParams, [&](const ApiJson& batch) { client.log_batch(run->id, ApiJson::array(), batch); });
    for (const auto& [name, value] : params) run->params.try_emplace(name, value);
  }

  void report_gone(const fs::path& path) {
    ++refused;
    log::warn("logger.artifact_gone", cat("[loggers.MLflowLogger] an artifact must exist until it is sent; ", path,
                                          " was removed before. Keep it until the end of the run."));
  }

  /// Uploads a file, or the files of a folder, under `name`.
  void upload(const fs::path& path, const std::string& name) {
    std::error_code error;
    if (!fs::exists(path, error))
      report_gone(path);
    else if (fs::is_directory(path, error))
      upload_folder(path, name);
    else
      attempt(name, [&] { client.upload(*run, name, path); });
    failed_uploads.clear();
    stored_files.clear();
  }

  void upload_folder(const fs::path& path, const std::string& name) {
    std::error_code error;
    bool complete = true;
    for (const fs::path& file : files_in(path)) {
      // Without all other files, a manifest would make a checkpoint look complete.
      if (!complete && file == manifest_of(path)) continue;
      // A checkpoint that is replaced is removed while it is read.
      if (!fs::exists(file, error)) {
        if (complete) report_gone(file);
        complete = false;
        continue;
      }
      const std::string file_name = cat(name, "/", file.lexically_relative(path).string());
      const fs::file_time_type written = fs::last_write_time(file, error);
      // After a failure, the folder is tried again from its first file.
      if (const auto stored = stored_files.find(file_name); stored != stored_files.end() && stored->second == written)
        continue;
      if (attempt(file_name, [&] { client.upload(*run, file_name, file); }))
        stored_files[file_name] = written;
      else
        complete = false;
    }
  }
};

void MLflowLogger::Options::fields(Fields& f) {
  f(tracking_uri, "tracking_uri", "Address of the MLflow server; null: MLFLOW_TRACKING_URI.");
  f(experiment_name, "experiment_name",
    "Experiment of the run, created if it is missing; null: MLFLOW_EXPERIMENT_NAME, or else fulgur_logs.");
  f(run_name, "run_name", "Name of the run in MLflow; null: that of the run folder, such as fulgur_logs/version_0.");
  f(run_id, "run_id",
    "Id of a run of MLflow to continue, unless the run resumes that of a checkpoint; null: a new one.");
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
  std::vector<std::string> ids;
  if (impl_->resumed) ids.push_back(*impl_->resumed);
  // A logger that has a run is in another stage of it, such as test after fit.
  if (impl_->run) ids.push_back(impl_->run->id);
  if (impl_->options.run_id) ids.push_back(*impl_->options.run_id);
  if (std::ranges::none_of(ids, [&](const std::string& id) { return impl_->continue_run(id); }))
    impl_->create_run(log_dir);
  impl_->resumed.reset();
}

void MLflowLogger::log_hyperparams(const ConfigNode& hparams) {
  std::map<std::string, std::string> params;
  for (const auto& [name, text] : tensorboard::hparam_texts(hparams))
    params[impl_->param_names.of(name)] = tensorboard::as_utf8(text.substr(0, kLongestParam));
  impl_->send_params(params);
}

void MLflowLogger::log_metrics(const Metrics& metrics, int64_t step) {
  // Before anything is added: if this throws, the row is logged again.
  if (impl_->waiting.size() + metrics.size() > kMostMetrics) impl_->send_metrics();
  const int64_t time = milliseconds(logged_at());
  for (const auto& [name, value] : metrics)
    impl_->waiting.push_back(
        {{"key", impl_->metric_names.of(name)}, {"value", metric_value(value)}, {"timestamp", time}, {"step", step}});
}

void MLflowLogger::log_media(const MediaRecord& record, int64_t step) {
  const MediaFile file = media_file(record, step);
  const std::string name = file.path.string();
  impl_->attempt(name, [&] { impl_->client.upload(*impl_->run, name, file.content); });
  impl_->failed_uploads.clear();
}

void MLflowLogger::log_artifact(const std::filesystem::path& path) {
  impl_->upload(path, impl_->artifact_names.name_of(path));
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
