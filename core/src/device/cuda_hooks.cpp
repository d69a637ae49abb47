// LibTorch asks for its CUDA hooks once and keeps the answer. If CUDA is not loaded by then, it keeps stand-ins, and no
// device can be used for the rest of the process. The first request comes early: seeding a generator is one. So the
// request loads CUDA if the driver has a device; a program that never makes it does not load CUDA.
#include <ATen/detail/CUDAHooksInterface.h>

#include <memory>
#include <utility>

#include "fulgur/core/device/accelerator.h"

namespace fulgur {
namespace {

constexpr const char* kKey = "CUDAHooks";

std::unique_ptr<at::CUDAHooksInterface> make_hooks(at::CUDAHooksArgs arguments) {
  find_accelerator("cuda");
  // CUDA's own registration has replaced this function, unless CUDA could not be loaded.
  static bool asked = false;
  return std::exchange(asked, true) ? nullptr : at::CUDAHooksRegistry()->Create(kKey, arguments);
}

[[maybe_unused]] const bool registered_cuda_hooks = [] {
  if (at::CUDAHooksRegistry()->Has(kKey)) return false;  // loaded already
  at::CUDAHooksRegistry()->Register(kKey, make_hooks, c10::REGISTRY_FALLBACK);
  return true;
}();

}  // namespace
}  // namespace fulgur
