#pragma once

#include <memory>

#include "fulgur/core/logger.h"
#include "fulgur/loggers/logger_options.h"

namespace fulgur {

/// Metrics as a table, `metrics.csv` in the run folder: columns `step`, `epoch`, then metrics in the order of their
/// first appearance; an empty field where a row has no value. Rows are appended; a new column rewrites the file through
/// a temporary one. Fields are quoted as RFC 4180 says, rows end with a line feed.
///
/// Where the file cannot be written, one warning (`logger.csv_write`) says so and the run goes on; rows wait for the
/// next flush, up to 1 MiB of them.
class FULGUR_API CsvLogger : public Logger {
 public:
  struct Options : LoggerOptions {
    int64_t flush_every_n_rows = 1;
    void fields(Fields& f);
  };
  /// Throws a ConfigError where `name` is no plain folder name.
  explicit CsvLogger(const Options& options);
  CsvLogger();
  ~CsvLogger() override;

  std::optional<std::string> run_name() const override;
  std::optional<int64_t> run_version() const override;
  StateTree state() override;
  void load_state(const StateTree& state) override;
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  /// Writes `hparams.yaml` beside the metrics.
  void log_hyperparams(const ConfigNode& hparams) override;
  void log_metrics(const Metrics& metrics, int64_t step) override;
  void flush() override;
  void finalize(RunStatus status) noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
