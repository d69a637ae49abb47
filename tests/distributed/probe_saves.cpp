// What disturbs saves, on the configured rank: for tests of checkpoints that all ranks write.
#include <ATen/core/grad_mode.h>
#include <fulgur/checkpoint/checkpoint_writer.h>
#include <fulgur/core/contracts/callback.h>
#include <fulgur/core/contracts/registry.h>
#include <sys/resource.h>

#include <limits>

namespace {

using fulgur::Batch;
using fulgur::Fields;

/// At a step, the elements of a rank become NaN, or it cannot write files any more.
class ProbeSaves : public fulgur::Callback {
 public:
  struct Options {
    int64_t rank = 1, nan_step = 0, file_limit_step = 0;
    void fields(Fields& f) {
      f(rank, "rank", "On which rank.");
      f(nan_step, "nan_step", "The step after which an element that the optimizer steps is NaN; 0: never.");
      f(file_limit_step, "file_limit_step", "The step after which a file may have 100 bytes; 0: never.");
    }
  };
  explicit ProbeSaves(const Options& options) : options_(options) {}

  void on_train_batch_end(fulgur::RunContext& run, const fulgur::StepOutput&, const Batch&, int64_t) override {
    const int64_t step = run.progress().global_step;
    if (run.rank() != options_.rank) return;
    if (step == options_.nan_step) {
      const at::NoGradGuard no_grad;
      for (const fulgur::Tensor& part : run.optimizer_plan().optimizers.front().optimizer->groups().front().params)
        if (part.numel() > 0) part.data().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    if (step == options_.file_limit_step) {
      const rlimit limit{.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
  }

 private:
  Options options_;
};
FULGUR_REGISTER(fulgur::Callback, ProbeSaves, "Disturbs saves.");

/// Writes as the default does.
class ProbeWriter : public fulgur::CheckpointWriter {
 public:
  struct Options {
    void fields(Fields&) {}
  };
  explicit ProbeWriter(const Options&) {}
};
FULGUR_REGISTER(fulgur::CheckpointWriter, ProbeWriter, "A writer of a user.");

}  // namespace
