#pragma once

#include <memory>

#include "fulgur/core/contracts/logger.h"
#include "fulgur/loggers/logger_options.h"

namespace fulgur {

/// Writes metrics as JSON, `metrics.jsonl` in the run folder: one object per row,
/// `{"step":10,"epoch":0,"train_loss":0.5}`, in logging order. Rows are appended and never rewritten, except for those
/// that a resumed run removes. Non-finite values are the strings "NaN", "Infinity", "-Infinity".
///
/// Media are files `media/NAME/step=N` in the run folder: a picture is a PNG file, a histogram JSON, a text `.txt`, a
/// table CSV. Of several media with the same name and step, the last one is kept. Artifacts are copied to `artifacts/`.
///
/// If the file cannot be written, one warning (`logger.jsonl_write`) reports it and the run continues; up to 1 MiB of
/// rows wait until the next row is written.
class FULGUR_API JsonlLogger : public Logger {
 public:
  using Options = LoggerOptions;
  /// Throws a ConfigError if `name` is not a plain folder name.
  explicit JsonlLogger(const Options& options);
  JsonlLogger();
  ~JsonlLogger() override;

  std::optional<std::string> run_name() const override;
  std::optional<int64_t> run_version() const override;
  StateTree state() override;
  void load_state(const StateTree& state) override;
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  /// Writes `hparams.json` next to the metrics.
  void log_hyperparams(const ConfigNode& hparams) override;
  void log_metrics(const Metrics& metrics, int64_t step) override;
  void log_media(const MediaRecord& record, int64_t step) override;
  void log_artifact(const std::filesystem::path& path) override;
  void flush() override;
  void finalize(RunStatus status) noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
