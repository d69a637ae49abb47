#include "fulgur/core/device/accelerator.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "device/cuda_driver.h"
#include "fulgur/core/device/recordable_hooks.h"
#include "fulgur/core/device/recordable_step.h"

namespace fulgur {
namespace {

class CpuAccelerator final : public Accelerator {
 public:
  std::string name() const override { return "cpu"; }
  int64_t device_count() const override { return 1; }
  at::Device device(int64_t) const override { return at::Device(at::kCPU); }
  std::string device_name(int64_t) const override { return "cpu"; }
  void synchronize(int64_t) const override {}
};

struct Accelerators {
  std::mutex mutex;
  std::vector<Accelerator*> list;
  std::atomic<int64_t> count{1};  ///< size of the list; read in each backward
  std::once_flag cuda_once;
  std::string cuda_reason, cuda_remedy;
};

Accelerators& accelerators() {
  static CpuAccelerator cpu;
  static Accelerators all{
      .mutex = {}, .list = {&cpu}, .count = 1, .cuda_once = {}, .cuda_reason = {}, .cuda_remedy = {}};
  return all;
}

constexpr const char* kRepairDriver =
    "Repair the NVIDIA driver: nvidia-smi must list the GPUs, and CUDA 13 needs driver 580 or newer";
constexpr const char* kGetCuda =
    "To use the GPU, run FULGUR_LIBTORCH=cuda scripts/setup.sh and build again; see chapter CUDA of docs/install.md";

struct Failure {
  std::string reason, remedy;
};

// Empty on success. Called without the lock: the library registers itself.
Failure load_cuda() {
  using State = detail::CudaDriver::State;
  const detail::CudaDriver driver = detail::find_cuda_driver();
  if (driver.state != State::ready) return {driver.reason, driver.state == State::broken ? kRepairDriver : ""};
  if (dlopen("libfulgur_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const char* const reason = dlerror();
  return {std::string("libfulgur_cuda.so could not be loaded: ") + (reason ? reason : "unknown reason"), kGetCuda};
}

}  // namespace

Accelerator::~Accelerator() = default;
GraphCapture::~GraphCapture() = default;
StepNotRecorded::StepNotRecorded(const std::string& message) : Error(message) {}
StepNotRecorded::~StepNotRecorded() = default;
RecordableStep::~RecordableStep() = default;
RecordableHooks::~RecordableHooks() = default;

void register_accelerator(Accelerator* accelerator) {
  std::lock_guard<std::mutex> lock(accelerators().mutex);
  accelerators().list.push_back(accelerator);
  ++accelerators().count;
}

int64_t accelerator_count() { return accelerators().count.load(std::memory_order_acquire); }

Accelerator* find_accelerator(const std::string& name) {
  auto& all = accelerators();
  // Other threads wait: their next calls to LibTorch must find CUDA loaded.
  if (name == "cuda")
    std::call_once(all.cuda_once, [&] {
      Failure failure = load_cuda();
      std::lock_guard<std::mutex> lock(all.mutex);
      all.cuda_reason = std::move(failure.reason);
      all.cuda_remedy = std::move(failure.remedy);
    });
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = std::ranges::find_if(all.list, [&](const Accelerator* a) { return a->name() == name; });
  if (found == all.list.end()) return nullptr;
  if ((*found)->device_count() == 0) {
    if (name == "cuda" && all.cuda_reason.empty()) {
      const std::string fault = (*found)->why_no_device();
      all.cuda_reason = fault.empty() ? "the NVIDIA driver lists no device (check CUDA_VISIBLE_DEVICES)" : fault;
      all.cuda_remedy = fault.empty() ? "" : kRepairDriver;
    }
    return nullptr;
  }
  return *found;
}

std::string why_no_cuda() {
  std::lock_guard<std::mutex> lock(accelerators().mutex);
  return accelerators().cuda_reason;
}

std::string how_to_get_cuda() {
  std::lock_guard<std::mutex> lock(accelerators().mutex);
  return accelerators().cuda_remedy;
}

bool built_for_cpu() {
#ifdef FULGUR_BUILT_FOR_CPU
  return true;
#else
  return false;
#endif
}

}  // namespace fulgur
