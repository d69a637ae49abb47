#include "fulgur/core/recorded_random.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>

#include <mutex>

#include "fulgur/core/errors.h"

namespace fulgur {
namespace {

// Kernels of a recording draw at the offset that the graph is launched with, plus one that counts within it. The
// generator tells the second with each draw, also with one of no numbers; it has no function that sets it.
uint64_t advance(c10::Device device, uint64_t by) {
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get<at::CUDAGeneratorImpl>()->philox_cuda_state(by).offset_intragraph_;
}

class CudaRecordedRandom final : public RecordedRandom {
 public:
  std::optional<uint64_t> position(c10::Device device) const override {
    const c10::cuda::CUDAGuard guard(device);
    if (at::cuda::currentStreamCaptureStatusMayInitCtx() == at::cuda::CaptureStatus::None) return std::nullopt;
    return advance(device, 0);
  }

  void set_position(c10::Device device, uint64_t position) const override {
    const c10::cuda::CUDAGuard guard(device);
    // Back by a difference modulo 2^64, as the offset is counted.
    advance(device, position - advance(device, 0));
    if (advance(device, 0) != position) throw Error("[cuda.RecordedRandom] LibTorch's generator cannot be set back");
  }
};

// Runs when this library is loaded.
[[maybe_unused]] const bool kRegistered = [] {
  static const CudaRecordedRandom recorded;
  register_recorded_random(c10::kCUDA, &recorded);
  return true;
}();

}  // namespace
}  // namespace fulgur
