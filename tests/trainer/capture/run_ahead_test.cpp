// However slow a GPU is, the host is at most a few steps ahead of it.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "support/gpu.h"
#include "trainer/boring.h"

namespace run_ahead_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

// Counts its steps on the device, and looks on the host how far that count has come.
struct Counting : SelfPlanned {
  Tensor on_device, on_host;
  int64_t begun = 0, most_ahead = 0;
  StepOutput training_step(const Batch& batch, int64_t index) override {
    if (!on_device.defined()) {
      on_device = at::zeros({}, batch[0].options().dtype(at::kLong));
      on_host = at::zeros({}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
    }
    most_ahead = std::max(most_ahead, begun++ - *on_host.const_data_ptr<int64_t>());
    StepOutput output = SelfPlanned::training_step(batch, index);
    on_device.add_(1);
    on_host.copy_(on_device, /*non_blocking=*/true);
    return output;
  }
};

}  // namespace

TEST_CASE("on a GPU, the host is at most four steps ahead", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  for (const bool manual : {false, true}) {
    struct ByHand : Counting {
      bool automatic_optimization() const override { return false; }
      StepOutput training_step(const Batch& batch, int64_t index) override {
        StepOutput output = Counting::training_step(batch, index);
        run().optimizer_handles().front()->zero_grad();
        run().manual_optimization().manual_backward(output.loss, {});
        run().optimizer_handles().front()->step();
        return output;
      }
    };
    TrainerOptions options = quiet(folder);
    options.accelerator = "cuda";
    options.log_every_n_steps = 1000;
    const std::shared_ptr<Counting> module = manual ? std::make_shared<ByHand>() : std::make_shared<Counting>();
    Trainer(options).fit(std::static_pointer_cast<LightningModule>(module), regression_data(200, 0));
    CAPTURE(manual);
    CHECK(module->begun == 50);
    CHECK(module->most_ahead <= 4);
  }
}

}  // namespace run_ahead_test
