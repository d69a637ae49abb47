// capture and host numbers in log().
#include <ATen/ops/argmax.h>
#include <ATen/ops/scalar_tensor.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/metrics/aggregation.h"
#include "fulgur/metrics/stat_scores.h"
#include "support/gpu.h"
#include "trainer/capture/captured_fit.h"

namespace captured_numbers_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Constant : Captured {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("alpha", 0.5, {.on_step = true, .on_epoch = true});
    log("count", 2, {.reduce_fx = Reduce::sum});
    // A tensor on the CPU is read at once.
    log("beta", at::scalar_tensor(0.25), {.reduce_fx = Reduce::last});
    return Captured::training_step(batch, batch_idx);
  }
};

// Changes after steps were captured, and before one that is made as it is.
struct Late : Captured {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("late", run().progress().global_step < 6 ? 1.0 : 2.0);
    return Captured::training_step(batch, batch_idx);
  }
};

// Metrics of the data alone, so that the weights' last bits have no influence.
struct Measured : Captured {
  metrics::Accuracy accuracy{{.num_classes = 2}};
  metrics::Mean mean;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    accuracy.update(batch[0].slice(1, 0, 2), batch[1].argmax(1));
    mean.update(batch[1]);
    log("accuracy", accuracy);
    log("mean", mean);
    return Captured::training_step(batch, batch_idx);
  }
};

template <class M>
std::pair<Outcome<M>, Outcome<M>> both(const TrainerOptions& options) {
  return {fit<M>(options, false, by_device), fit<M>(options, true, by_device)};
}

}  // namespace

TEST_CASE("on a GPU, host numbers that stay the same are logged by captured steps", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  const auto [plain, captured] = both<Constant>(options);
  CHECK(captured.report.captured_batches == 27);
  CHECK_THAT(captured.told, ContainsSubstring("'alpha' 0.5, 'count' 2.0, 'beta' 0.25"));
  for (const char* name : {"alpha_step", "alpha_epoch", "count", "beta", "train_loss"})
    check_same_logs(plain, captured, name);
}

TEST_CASE("on a GPU, captured steps update metric objects, also in epochs that begin with one", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto [plain, captured] = both<Measured>(three_epochs_on_cuda(folder));
  CHECK(captured.report.captured_batches == 27);
  CHECK(captured.logger->values("accuracy").size() == 3);
  for (const char* name : {"accuracy", "mean"}) check_same_logs(plain, captured, name);
}

TEST_CASE("on a GPU, a host number that changes is named, and the steps are not captured", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  const auto [plain, captured] = both<BatchIndexLogged>(options);
  CHECK_THAT(captured.told, ContainsSubstring("not captured: 'batch' in log() is a host number that changes"));
  CHECK(captured.report.captured_batches == 0);
  check_same_logs(plain, captured, "batch");
  CHECK(same_weights(plain.weights, captured.weights));
}

TEST_CASE("on a GPU, a host number that changes later ends the capture when a step shows it", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.accumulate_grad_batches = 2;
  // An epoch's last window has whole batches, but is shorter, and so made as it is.
  const auto captured = fit<Late>(options, true, by_device, {}, 44);
  CHECK(captured.report.captured_batches > 0);
  // Windows of two batches; the number is 2 from the seventh step on.
  CHECK_THAT(captured.told, ContainsSubstring("warning: capture: 'late' in log() is a host number. It was 1.0 when "
                                              "the steps were captured, after step 2, and is 2.0 after step 6. "));
  CHECK_THAT(captured.told,
             ContainsSubstring("on_train_batch_end") && ContainsSubstring("[trainer.host_number_changed]"));
  CHECK_THAT(captured.told, !ContainsSubstring("trainer.not_captured"));
  CHECK_THAT(captured.report.not_captured.value_or(""), ContainsSubstring("'late' in log() is a host number"));
  const auto values = captured.logger->values("late");
  CHECK(values.back().second == 2.0);
}

}  // namespace captured_numbers_gpu_test
