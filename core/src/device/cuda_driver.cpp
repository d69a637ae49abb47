#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <unistd.h>

namespace fulgur::detail {
namespace {

// CUDA's driver API: CUresult.
constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;

bool kernel_has_driver() {
  return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0;
}

// WSL2 has neither, only this device provided by Windows; libcuda.so.1 exists if the GPU is NVIDIA's.
bool is_wsl() { return access("/dev/dxg", F_OK) == 0; }

std::string describe(void* library, int code) {
  const auto text_of = reinterpret_cast<int (*)(int, const char**)>(dlsym(library, "cuGetErrorString"));
  const char* text = nullptr;
  if (text_of == nullptr || text_of(code, &text) != kSuccess || text == nullptr) text = "no description";
  return "cuInit of libcuda.so.1 failed with code " + std::to_string(code) + " (" + text + ")";
}

}  // namespace

CudaDriver find_cuda_driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = library ? reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit")) : nullptr;
  if (init == nullptr) {
    if (!kernel_has_driver()) return {CudaDriver::State::none, "this machine has no NVIDIA driver"};
    // A container without access to the machine's GPUs.
    return {CudaDriver::State::no_device,
            "the kernel has an NVIDIA driver, but its library libcuda.so.1 was not found"};
  }
  const int code = init(0);
  if (code == kSuccess) return {CudaDriver::State::ready, {}};
  if (code == kNoDevice)
    return {CudaDriver::State::no_device, "the NVIDIA driver lists no device (check CUDA_VISIBLE_DEVICES)"};
  // The library alone, without the driver, fails in many ways.
  if (!kernel_has_driver() && !is_wsl())
    return {CudaDriver::State::none, "this machine has no NVIDIA driver: " + describe(library, code)};
  return {CudaDriver::State::broken, describe(library, code)};
}

}  // namespace fulgur::detail
