// capture: steps on the CPU, recorded as programs.
#include <ATen/TensorOperators.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "trainer/capture/captured_fit.h"

namespace captured_cpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

// The strategy is the default one.
void on_cpu(TrainerComponents& components) { components.strategy = nullptr; }

// Rates that float32 does not have: on the CPU they are doubles.
struct OnCpu : BoringModule {
  OnCpu() : BoringModule(0.25) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
};

TEST_CASE(
    "captured steps on the CPU have the bits of eager ones: weights, logged values, dropout, clipping, schedules") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.gradient_clip_val = 0.5;
  options.log_grad_norm = true;
  const auto plain = fit<OnCpu>(options, false, on_cpu), captured = fit<OnCpu>(options, true, on_cpu);
  INFO(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  // 11 batches an epoch, the last of 2 samples; 3 steps are made first.
  CHECK(captured.report.captured_batches == 27);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  check_same_logs(plain, captured, "grad_norm");
}

TEST_CASE("accumulation windows, captured on the CPU, have the bits of eager ones") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.accumulate_grad_batches = 3;
  const auto plain = fit<OnCpu>(options, false, on_cpu, {}, 100), captured = fit<OnCpu>(options, true, on_cpu, {}, 100);
  INFO(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 30);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
}

TEST_CASE("a captured run on the CPU resumes to the same weights") {
  const TemporaryFolder whole_folder, folder;
  const auto whole = fit<OnCpu>(three_epochs(whole_folder), true, on_cpu);
  TrainerOptions options = three_epochs(folder);
  options.max_steps = 14;
  fit<OnCpu>(options, true, on_cpu);
  options.max_steps = -1;
  const auto rest = fit<OnCpu>(options, true, on_cpu, "last");
  CHECK(same_weights(whole.weights, rest.weights));
  CHECK(rest.report.captured_batches > 0);
}

struct ReadsLoss : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (output.loss.item<double>() > 1e6) output.loss = output.loss * 0.5;
    return output;
  }
};

TEST_CASE(
    "a step that reads a value is not captured: the operation and the place are named, the run is the eager one") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<ReadsLoss>(options, false, on_cpu), refused = fit<ReadsLoss>(options, true, on_cpu);
  CHECK(refused.report.captured_batches == 0);
  CHECK_THAT(
      refused.report.not_captured.value_or(""),
      ContainsSubstring("aten::_local_scalar_dense in training_step") && ContainsSubstring("values on the host"));
  CHECK_THAT(refused.told, ContainsSubstring("the steps are not captured"));
  CHECK(same_weights(plain.weights, refused.weights));
}

// A number of the host that changes in each step.
struct CountsOnHost : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    output.loss = output.loss * (1 + 1e-3 * static_cast<double>(run().progress().global_step));
    return output;
  }
};

TEST_CASE("a step with a number that the host changes is found by the second recording, and its run is the eager one") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<CountsOnHost>(options, false, on_cpu), refused = fit<CountsOnHost>(options, true, on_cpu);
  CHECK(refused.report.captured_batches == 1);
  CHECK_THAT(refused.report.not_captured.value_or(""), ContainsSubstring("a number of the host has changed"));
  CHECK(same_weights(plain.weights, refused.weights));
}

// One that changes rarely.
struct ChangesRarely : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (run().progress().epoch > 0) output.loss = output.loss * 0.5;
    return output;
  }
};

TEST_CASE("host code that changes rarely is found in the next epoch, and ends the run with the weights of before") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(fit<ChangesRarely>(three_epochs(folder), true, on_cpu),
                    ContainsSubstring("[trainer.capture]") && ContainsSubstring("aten::mul"));
}

// One batch is infinite.
struct Breaks : OnCpu {
  int on_train_batch_start(const Batch& batch, int64_t batch_idx) override {
    if (run().progress().global_step == 20) Tensor(batch[0]).fill_(std::numeric_limits<float>::infinity());
    return OnCpu::on_train_batch_start(batch, batch_idx);
  }
};

TEST_CASE("a loss that is not finite is found in captured steps on the CPU, and skipped steps leave no trace") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.on_nonfinite = OnNonFinite::raise;
  CHECK_THROWS_WITH(fit<Breaks>(options, true, on_cpu), ContainsSubstring("not finite"));
  options.on_nonfinite = OnNonFinite::skip;
  const auto plain = fit<Breaks>(options, false, on_cpu), captured = fit<Breaks>(options, true, on_cpu);
  INFO(captured.told);
  CHECK(captured.report.captured_batches == 27);
  CHECK(same_weights(plain.weights, captured.weights));
}

}  // namespace captured_cpu_test
