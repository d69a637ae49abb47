#pragma once

#include <memory>

#include "fulgur/core/logger.h"
#include "fulgur/loggers/logger_options.h"

namespace fulgur {

/// Metrics as JSON, `metrics.jsonl` in the run folder: one object per row, `{"step":10,"epoch":0,"train_loss":0.5}`, in
/// the order of logging; appended and never rewritten, but for rows that a resumed run cuts off. Values that JSON has
/// no number for are the strings "NaN", "Infinity", "-Infinity".
///
/// Where the file cannot be written, one warning (`logger.jsonl_write`) says so and the run goes on; rows wait for the
/// next one, up to 1 MiB of them.
class FULGUR_API JsonlLogger : public Logger {
 public:
  using Options = LoggerOptions;
  /// Throws a ConfigError where `name` is no plain folder name.
  explicit JsonlLogger(const Options& options);
  JsonlLogger();
  ~JsonlLogger() override;

  std::optional<std::string> run_name() const override;
  std::optional<int64_t> run_version() const override;
  StateTree state() override;
  void load_state(const StateTree& state) override;
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  /// Writes `hparams.json` beside the metrics.
  void log_hyperparams(const ConfigNode& hparams) override;
  void log_metrics(const Metrics& metrics, int64_t step) override;
  void flush() override;
  void finalize(RunStatus status) noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
