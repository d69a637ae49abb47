#include "fulgur/core/accelerator.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

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
  bool cuda_tried = false;
  std::string cuda_reason;
};

Accelerators& accelerators() {
  static CpuAccelerator cpu;
  static Accelerators all{.mutex = {}, .list = {&cpu}, .cuda_tried = false, .cuda_reason = {}};
  return all;
}

bool has_driver() { return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0; }

// Returns the reason of a failure, or nothing. Run without the lock: the library registers itself.
std::string load_cuda() {
  if (!has_driver()) return "this machine has no NVIDIA driver";
  if (dlopen("libfulgur_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* reason = dlerror();
    return std::string("libfulgur_cuda.so could not be loaded: ") + (reason ? reason : "unknown reason");
  }
  return {};
}

}  // namespace

Accelerator::~Accelerator() = default;
GraphCapture::~GraphCapture() = default;

void register_accelerator(Accelerator* accelerator) {
  std::lock_guard<std::mutex> lock(accelerators().mutex);
  accelerators().list.push_back(accelerator);
}

Accelerator* find_accelerator(const std::string& name) {
  auto& all = accelerators();
  bool try_cuda = false;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    try_cuda = name == "cuda" && !all.cuda_tried;
    all.cuda_tried |= try_cuda;
  }
  if (try_cuda) {
    std::string reason = load_cuda();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.cuda_reason = std::move(reason);
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = std::find_if(all.list.begin(), all.list.end(), [&](const Accelerator* a) { return a->name() == name; });
  if (found == all.list.end()) return nullptr;
  if ((*found)->device_count() == 0) {
    all.cuda_reason = "the NVIDIA driver lists no device (CUDA_VISIBLE_DEVICES?)";
    return nullptr;
  }
  return *found;
}

std::string why_no_cuda() {
  std::lock_guard<std::mutex> lock(accelerators().mutex);
  return accelerators().cuda_reason;
}

}  // namespace fulgur
