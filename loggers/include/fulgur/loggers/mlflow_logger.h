#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/logger.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/options.h"

namespace fulgur {

/// Which checkpoints MLflowLogger stores as artifacts.
enum class MLflowModels { none, best, all };
constexpr auto enum_names(MLflowModels) {
  using enum MLflowModels;
  return std::array{EnumName{none, "false"}, EnumName{best, "best"}, EnumName{all, "all"}};
}

/// Sends metrics, hyper-parameters, media, artifacts and checkpoints to an MLflow server by its REST API. It has its
/// own thread, so that the run neither waits for the server nor fails because of it.
///
/// A run of the Trainer is a run of MLflow; a checkpoint contains its id, and a resumed run continues it. MLflow cannot
/// delete values, so values of steps after the checkpoint are in its history twice. Hyper-parameters that are in the
/// run already keep their first value. Media and artifacts need a server that stores artifacts itself
/// (`--serve-artifacts`, its default).
///
/// User and password, or a token, come from MLflow's environment variables MLFLOW_TRACKING_USERNAME,
/// MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN. MLFLOW_TRACKING_INSECURE_TLS=true accepts any certificate.
class FULGUR_API MLflowLogger : public Logger {
 public:
  struct Options {
    std::optional<std::string> tracking_uri;
    std::optional<std::string> experiment_name;
    std::optional<std::string> run_name;
    std::optional<std::string> run_id;
    std::map<std::string, std::string> tags;
    MLflowModels log_model = MLflowModels::none;
    void fields(Fields& f);
  };
  /// Throws a ConfigError if there is no address of a server, or if the option `tracking_uri` contains a user.
  explicit MLflowLogger(const Options& options);
  ~MLflowLogger() override;

  bool may_block() const override { return true; }
  StateTree state() override;
  void load_state(const StateTree& state) override;
  /// Continues the run of the checkpoint, else that of an earlier stage, else `run_id`, or creates one.
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  void log_hyperparams(const ConfigNode& hparams) override;
  void log_metrics(const Metrics& metrics, int64_t step) override;
  void log_media(const MediaRecord& record, int64_t step) override;
  void log_artifact(const std::filesystem::path& path) override;
  void after_save_checkpoint(const CheckpointInfo& info) override;
  /// Sends the values that wait. Throws an Error if the server does not take them now.
  void flush() override;
  /// Sets the status of the run: FINISHED, FAILED, or KILLED for an interrupted one.
  void finalize(RunStatus status) noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
