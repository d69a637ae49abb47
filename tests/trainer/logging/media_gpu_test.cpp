// Media from a GPU: what reaches the loggers is what the tensor was when it was logged.
#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>

#include "support/gpu.h"
#include "trainer/boring.h"

namespace media_gpu_test {

using namespace fulgur;
using namespace fulgur::test;

TEST_CASE("on a GPU, media of batches have the values and steps of the time of the call", "[gpu]") {
  require_gpus(1);
  struct Logging : SelfPlanned {
    Tensor scratch;
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override {
      if (!scratch.defined()) scratch = at::full({1 << 20}, 0, at::TensorOptions().device(device()).dtype(at::kFloat));
      scratch.fill_(i);
      log_media(HistogramRecord{"scratch", scratch});
      scratch.fill_(-1);  // after the copy
    }
    Outputs validation_step(const Batch& batch, int64_t i, int64_t loader) override {
      const Tensor picture = at::full({1, 2, 2}, static_cast<double>(i) / 255, batch[0].options());
      log_media(ImageRecord{"val", picture});
      return SelfPlanned::validation_step(batch, i, loader);
    }
    void on_train_epoch_end() override { log_media(HistogramRecord{"end", scratch}); }
  };
  const TemporaryFolder folder;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {logger};
  Trainer(options, components).fit(std::make_shared<Logging>(), regression_data(40, 12, 4, false));
  int64_t batches = 0, pictures = 0;
  for (const auto& [step, record] : logger->media) {
    if (media_name(record) == "scratch") {
      const Tensor& values = std::get<HistogramRecord>(record).values;
      CHECK(values.is_cpu());
      CHECK(values.eq(static_cast<double>(batches)).all().item<bool>());
      CHECK(step == ++batches);
    } else if (media_name(record) == "val") {
      CHECK(std::get<ImageRecord>(record).pixels.eq(pictures++).all().item<bool>());
      CHECK(step == 10);
    } else {
      CHECK(std::get<HistogramRecord>(record).values.eq(-1).all().item<bool>());
      CHECK(step == 10);
    }
  }
  CHECK(batches == 10);
  CHECK(pictures == 3);
  CHECK(logger->media.size() == 14);
}

}  // namespace media_gpu_test
