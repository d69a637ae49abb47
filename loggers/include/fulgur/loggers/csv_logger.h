#pragma once

#include <memory>

#include "fulgur/core/contracts/logger.h"
#include "fulgur/loggers/logger_options.h"

namespace fulgur {

/// Writes metrics as a table, `metrics.csv` in the run folder. Its columns are `step`, `epoch`, then metrics in the
/// order of their first appearance; a field is empty if a row has no value. Rows are appended; a new column rewrites
/// the file through a temporary one. Fields are quoted according to RFC 4180, rows end with a line feed.
///
/// Media are files `media/NAME/step=N` in the run folder: a picture is a PNG file, a histogram JSON, a text `.txt`, a
/// table CSV. Of several media with the same name and step, the last one is kept. Artifacts are copied to `artifacts/`.
///
/// If the file cannot be written, one warning (`logger.csv_write`) reports it and the run continues; up to 1 MiB of
/// rows wait for the next flush.
class FULGUR_API CsvLogger : public Logger {
 public:
  struct Options : LoggerOptions {
    int64_t flush_every_n_rows = 1;
    void fields(Fields& f);
  };
  /// Throws a ConfigError if `name` is not a plain folder name.
  explicit CsvLogger(const Options& options);
  CsvLogger();
  ~CsvLogger() override;

  std::optional<std::string> run_name() const override;
  std::optional<int64_t> run_version() const override;
  StateTree state() override;
  void load_state(const StateTree& state) override;
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  /// Writes `hparams.yaml` next to the metrics.
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
