#pragma once

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/options/options.h"

namespace fulgur {

/// Records what happens in a few training steps (each operation, GPU kernels, gradient exchanges between ranks) and
/// writes it as a Chrome trace, `trace_rank<N>.json` in the run folder: open it in https://ui.perfetto.dev or
/// chrome://tracing. Every rank writes its own file. Recording slows down only the recorded steps.
class FULGUR_API ChromeTrace : public Callback {
 public:
  struct FULGUR_API Options {
    int64_t first_batch = 10, batches = 3;
    void fields(Fields& f);
  };
  explicit ChromeTrace(Options options);
  ~ChromeTrace() override;
  std::string state_key() const override { return "ChromeTrace"; }
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_exception(RunContext& run, const std::exception& error) override;
  void teardown(RunContext& run, TrainerFn fn) override;

 private:
  void stop(RunContext* run) noexcept;
  Options options_;
  int64_t started_ = 0, ended_ = 0;  // batches of this run
  bool recording_ = false;
};

}  // namespace fulgur
