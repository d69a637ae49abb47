// Batches that a prefetcher copies to a device ahead of time, on a side stream.
#include "fulgur/data/device_prefetcher.h"

#include <ATen/ops/arange.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "support/gpu.h"

namespace device_prefetcher_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

const at::Device kGpu(at::kCUDA, 0);
constexpr int64_t kBatches = 6, kValues = 1 << 18;

// Copies come to their end, whatever the run's stream still has to do: a GPU may be that far ahead.
void finish_side_streams() {
  const c10::impl::VirtualGuardImpl impl(kGpu.type());
  for (int i = 0; i < 32; ++i) impl.synchronizeStream(impl.getStreamFromGlobalPool(kGpu));
}

}  // namespace

TEST_CASE("on a GPU, a batch's memory is not reused while the run's stream still reads it", "[gpu]") {
  require_gpus(1);
  const Tensor rows = at::arange(kBatches, at::kFloat).unsqueeze(1).expand({kBatches, kValues}).contiguous();
  DevicePrefetcher loader(std::make_shared<DataLoader>(std::make_shared<TensorDataset>(Batch{{"x", rows}}),
                                                       DataLoaderOptions{.batch_size = 1}),
                          kGpu);
  loader.start_epoch(0);
  std::vector<Tensor> means;
  Batch batch;
  while (loader.next(batch)) {
    means.push_back(batch[0].mean());
    batch = {};
    loader.read_ahead();
    finish_side_streams();
  }
  REQUIRE(means.size() == kBatches);
  for (int64_t i = 0; i < kBatches; ++i) {
    CAPTURE(i);
    CHECK(means[static_cast<size_t>(i)].item<float>() == static_cast<float>(i));
  }
}

}  // namespace device_prefetcher_test
