#include "fulgur/core/device/recorded_random.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>

#include <mutex>

namespace fulgur {
namespace {

// LibTorch's generator has no function that reads or sets its position in a recording; the state that counts it is
// public, but the generator's pointer to it is private. An explicit instantiation may name private members.
c10::intrusive_ptr<at::CUDAGeneratorState> state_of(const at::CUDAGeneratorImpl& generator);
template <auto kMember>
struct Access {
  friend c10::intrusive_ptr<at::CUDAGeneratorState> state_of(const at::CUDAGeneratorImpl& generator) {
    return generator.*kMember;
  }
};
template struct Access<&at::CUDAGeneratorImpl::state_>;

// Kernels of a recording draw at the offset that the graph is launched with, plus this offset within the graph. Calls
// `use` under the generator's lock.
template <class Use>
void with_place(c10::Device device, const Use& use) {
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  use(state_of(*generator.get<at::CUDAGeneratorImpl>())->offset_intragraph_);
}

class CudaRecordedRandom final : public RecordedRandom {
 public:
  std::optional<uint64_t> position(c10::Device device) const override {
    const c10::cuda::CUDAGuard guard(device);
    if (at::cuda::currentStreamCaptureStatusMayInitCtx() == at::cuda::CaptureStatus::None) return std::nullopt;
    uint64_t position = 0;
    with_place(device, [&](const uint64_t& place) { position = place; });
    return position;
  }

  void set_position(c10::Device device, uint64_t position) const override {
    with_place(device, [&](uint64_t& place) { place = position; });
  }
};

// Runs when this library is loaded.
[[maybe_unused]] const bool registered_recorded_random = [] {
  static const CudaRecordedRandom recorded;
  register_recorded_random(c10::kCUDA, &recorded);
  return true;
}();

}  // namespace
}  // namespace fulgur
