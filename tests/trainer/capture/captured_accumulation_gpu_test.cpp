// capture with accumulation: captured windows have the numbers of eager ones bit for bit.
#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "support/device_counts.h"
#include "support/gpu.h"
#include "trainer/capture/captured_fit.h"

namespace captured_accumulation_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// Gradients of the first batch of a window that are -0: added to zeros they would be 0.
struct NegativeZeros : Captured {
  Tensor extra = register_parameter("extra", at::full({3}, -0.0));
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]) + (extra * -0.0).sum();
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    if (extra.grad().defined()) seen.push_back(extra.grad().clone());
  }
  std::vector<Tensor> seen;
};

struct Widening : Callback {
  void on_train_epoch_start(RunContext& run) override { run.set_accumulation(run.progress().epoch + 1); }
};

// In the middle of a window.
struct Switching : Captured {
  int on_train_batch_start(const Batch&, int64_t batch_idx) override {
    if (run().progress().epoch == 1 && batch_idx == 4) drop->eval();
    return 0;
  }
};

template <class M>
Outcome<M> check_same(const TrainerOptions& options, const std::function<void(TrainerComponents&)>& change = {}) {
  const auto run = [&](bool captures) {
    return fit<M>(options, captures, [&](TrainerComponents& components) {
      by_device(components);
      if (change) change(components);
    });
  };
  const auto plain = run(false);
  auto captured = run(true);
  CAPTURE(captured.told);
  CHECK(captured.report.captured_batches > 0);
  CHECK_THAT(captured.told, !ContainsSubstring("not captured"));
  CHECK(same_weights(plain.weights, captured.weights));
  CHECK(captured.report.global_step == plain.report.global_step);
  for (const char* name : {"train_loss", "train_loss_step", "train_loss_epoch", "grad_norm", "loss_scale"})
    if (!plain.logger->values(name).empty()) check_same_logs(plain, captured, name);
  return captured;
}

}  // namespace

TEST_CASE("on a GPU, captured steps with accumulation have the numbers of eager ones bit for bit", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"})
    for (const int64_t every : {2, 3, 4}) {
      CAPTURE(precision, every);
      TrainerOptions options = three_epochs_on_cuda(folder);
      options.precision = Spec<Precision>(precision);
      options.accumulate_grad_batches = every;
      options.gradient_clip_val = 0.5;
      options.log_grad_norm = true;
      check_same<Captured>(options);
    }
}

TEST_CASE("on a GPU, the first batch of a captured window makes the gradients, down to the sign of a zero", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  // So that first batches are in both sets of inputs.
  options.accumulate_grad_batches = 3;
  const auto captured = check_same<NegativeZeros>(options);
  REQUIRE_FALSE(captured.module->seen.empty());
  for (const Tensor& gradient : captured.module->seen) CHECK(gradient.cpu().signbit().all().item<bool>());
}

TEST_CASE("on a GPU, captured windows follow a length that changes, and a layer's mode inside one", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  check_same<Captured>(options, [](TrainerComponents& components) { components.add(std::make_shared<Widening>()); });
  options.accumulate_grad_batches = 3;
  check_same<Switching>(options);
}

TEST_CASE("on a GPU, each batch of a captured window is one launch", "[gpu]") {
  require_gpus(1);
  if (!device_counts()) SKIP("steps are counted on simulated CUDA only");
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.accumulate_grad_batches = 3;
  options.max_epochs = 1;
  options.log_every_n_steps = 1000;
  struct Counting : Callback {
    void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t batch_idx) override {
      // Six recordings, of which the last is made for batch 11 at the latest.
      if (batch_idx == 11) first = *device_counts();
      if (batch_idx == 17) last = *device_counts();
    }
    DeviceCounts first, last;
  };
  const auto counting = std::make_shared<Counting>();
  struct Steady : BoringModule {
    OptimizerPlan configure_optimizers() override { return std::make_shared<AdamW>(AdamW::Options()); }
  };
  fit<Steady>(
      options, true,
      [&](TrainerComponents& components) {
        by_device(components);
        components.add(counting);
      },
      {}, 80);
  CHECK(counting->last.graph_launches - counting->first.graph_launches == 6);
  CHECK(counting->last.launches - counting->first.launches == 0);
  CHECK(counting->last.copies_on_device - counting->first.copies_on_device == 0);
  CHECK(counting->last.copies_to_device - counting->first.copies_to_device == 12);
}

}  // namespace captured_accumulation_gpu_test
