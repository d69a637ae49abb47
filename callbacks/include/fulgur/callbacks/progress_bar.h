#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/callback.h"

namespace fulgur {

namespace detail {
class ConsoleLine;
}

/// Shows the progress of a run on stderr. On a terminal it is one bar, which is redrawn, with rate, time left and the
/// metrics logged with prog_bar; log lines are printed above it. The time left is for the epoch, assuming that
/// validations take as long as the last one. Otherwise, or if TERM is `dumb`, a plain line is printed every few
/// seconds. NO_COLOR turns off colour. Metrics are read only when something is drawn. Its hooks run on one thread; any
/// thread may log.
class FULGUR_API ProgressBar final : public Callback {
 public:
  struct FULGUR_API Options {
    Interval refresh{0.1, Interval::Unit::seconds};
    Interval line_every{10, Interval::Unit::seconds};
    void fields(Fields& f);
  };
  explicit ProgressBar(Options options);
  ~ProgressBar() override;

  void setup(RunContext& run, TrainerFn fn) override;
  void teardown(RunContext& run, TrainerFn fn) override;
  void on_exception(RunContext& run, const std::exception& error) override;
  void on_train_start(RunContext& run) override;
  void on_train_end(RunContext& run) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_validation_start(RunContext& run) override;
  void on_validation_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                               int64_t loader_idx) override;
  void on_validation_end(RunContext& run) override;
  void on_test_start(RunContext& run) override;
  void on_test_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                         int64_t loader_idx) override;
  void on_test_end(RunContext& run) override;
  void on_predict_start(RunContext& run) override;
  void on_predict_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                            int64_t loader_idx) override;
  void on_predict_end(RunContext& run) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Bar {
    std::string title = {};
    std::optional<int64_t> total = {};
    int64_t done = 0;
    int64_t done_before = 0;  // batches done before this process resumed the epoch
    Clock::time_point began = {};
    double paused_s = 0;  // time of validations during the epoch
  };
  void begin(std::string title, std::optional<int64_t> total, int64_t done_before = 0);
  void begin_epoch(RunContext& run, int64_t done_before);
  void begin_evaluation(RunContext& run, const char* title, RunningStage stage);
  void advance(RunContext& run, int64_t done);
  void advance_evaluation(RunContext& run, int64_t loader_idx);
  void end(RunContext& run);
  void leave();
  void draw(RunContext& run, bool last);
  std::string line(RunContext& run, int64_t columns) const;
  double seconds_left(RunContext& run, double rate) const;
  int64_t validations_left(RunContext& run) const;

  Options options_;
  std::unique_ptr<detail::ConsoleLine> console_;
  bool terminal_ = false, colour_ = false, active_ = false;
  Clock::time_point drawn_;
  Bar bar_;
  Bar train_;  // the training bar, set aside while validation runs
  bool train_active_ = false;

  // Evaluation.
  std::string evaluation_title_;
  int64_t evaluation_done_ = 0;
  std::array<bool, 4> several_loaders_{};  // per stage, set once a second one was seen

  // Known validation times inside training; positions are batches over the run.
  double validation_s_ = 0;  // duration of the last one
  int64_t epoch_began_at_ = 0;
  bool validated_in_epoch_ = false;
  std::optional<int64_t> validated_at_, validation_spacing_;
};

}  // namespace fulgur
