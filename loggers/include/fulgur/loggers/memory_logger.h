#pragma once

#include <vector>

#include "fulgur/core/contracts/logger.h"

namespace fulgur {

/// Public members keep everything that is logged, for tests and for programs that read their own metrics.
class FULGUR_API MemoryLogger : public Logger {
 public:
  struct Row {
    int64_t step = 0;
    Metrics metrics;
  };
  struct Media {
    int64_t step = 0;
    MediaRecord record;
  };

  StateTree state() override;
  void load_state(const StateTree& state) override;
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  void log_hyperparams(const ConfigNode& hparams) override { hyperparams = hparams; }
  void log_metrics(const Metrics& metrics, int64_t step) override { rows.push_back({step, metrics}); }
  void log_media(const MediaRecord& record, int64_t step) override { media.push_back({step, record}); }
  void log_artifact(const std::filesystem::path& path) override { artifacts.push_back(path); }
  void after_save_checkpoint(const CheckpointInfo& info) override { checkpoints.push_back(info); }
  void finalize(RunStatus final_status) noexcept override { status = final_status; }

  /// Values of a metric in logging order, with their steps.
  std::vector<std::pair<int64_t, double>> values(std::string_view name) const;

  std::filesystem::path log_dir;
  ConfigNode hyperparams;
  std::vector<Row> rows;
  std::vector<Media> media;
  std::vector<std::filesystem::path> artifacts;
  std::vector<CheckpointInfo> checkpoints;
  std::optional<RunStatus> status;  ///< set by `finalize`

 private:
  std::optional<StateTree> resumed_;
};

}  // namespace fulgur
