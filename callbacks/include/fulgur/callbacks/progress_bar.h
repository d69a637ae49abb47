#pragma once

#include <chrono>
#include <string>

#include "fulgur/core/callback.h"
#include "fulgur/core/log.h"

namespace fulgur {

/// Shows where a run is, on stderr. On a terminal: one bar that is redrawn, with rate, time left and the metrics logged
/// with prog_bar; log lines are printed above it. Elsewhere: a plain line every few seconds. Metrics are read only when
/// something is drawn.
class FULGUR_API ProgressBar final : public Callback, private log::ConsoleGuard {
 public:
  struct FULGUR_API Options {
    double refresh_s = 0.1;
    double line_every_s = 10.0;
    void fields(Fields& f);
  };
  explicit ProgressBar(Options options);
  ~ProgressBar() override;

  void setup(RunContext& run, Verb verb) override;
  void teardown(RunContext& run, Verb verb) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_validation_start(RunContext& run) override;
  void on_validation_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_validation_end(RunContext& run) override;
  void on_test_start(RunContext& run) override;
  void on_test_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_test_end(RunContext& run) override;
  void on_predict_start(RunContext& run) override;
  void on_predict_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_predict_end(RunContext& run) override;

 private:
  using Clock = std::chrono::steady_clock;
  void begin(std::string title, std::optional<int64_t> total);
  void advance(RunContext& run, int64_t done);
  void end(RunContext& run);
  void draw(RunContext& run, bool last);
  std::string line(RunContext& run, int64_t columns) const;
  void before_line() override;
  void after_line() override;
  void clear();

  Options options_;
  bool terminal_ = false, active_ = false, installed_ = false;
  std::string title_, shown_;
  std::optional<int64_t> total_;
  int64_t done_ = 0;
  Clock::time_point began_, drawn_;
  int64_t evaluation_done_ = 0;
  // The training bar, put aside while validation runs.
  std::string train_title_;
  std::optional<int64_t> train_total_;
  int64_t train_done_ = 0;
  Clock::time_point train_began_;
};

}  // namespace fulgur
