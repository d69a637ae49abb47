#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "cuda_graph.h"
#include "fulgur/core/device/accelerator.h"

namespace fulgur {
namespace {

class CudaAccelerator final : public Accelerator {
 public:
  std::string name() const override { return "cuda"; }
  int64_t device_count() const override { return c10::cuda::device_count(); }

  std::string why_no_device() const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    cudaGetLastError();
    if (error == cudaSuccess || error == cudaErrorNoDevice) return {};
    return std::string("the CUDA runtime finds no device: ") + cudaGetErrorString(error);
  }

  at::Device device(int64_t index) const override {
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  }

  std::string device_name(int64_t index) const override {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, static_cast<int>(index)) != cudaSuccess) return "cuda device";
    return properties.name;
  }

  void synchronize(int64_t index) const override {
    const c10::DeviceIndex before = c10::cuda::current_device();
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
    c10::cuda::device_synchronize();
    c10::cuda::set_device(before);
  }

  std::string cannot_compute_in(at::ScalarType dtype, int64_t index) const override {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, static_cast<int>(index)) != cudaSuccess) return {};
    const int capability = properties.major * 10 + properties.minor;
    const int needed = dtype == at::kBFloat16 ? 80 : dtype == at::kHalf ? 53 : 0;
    if (capability >= needed) return {};
    return std::string(properties.name) + " has compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor) + ", but " + c10::toString(dtype) + " needs " +
           std::to_string(needed / 10) + "." + std::to_string(needed % 10);
  }

  std::unique_ptr<GraphCapture> make_graph_capture(int64_t index) const override {
    return make_cuda_graph(device(index));
  }
};

// Runs when libfulgur.so loads this library.
[[maybe_unused]] const bool registered_cuda_accelerator = [] {
  static CudaAccelerator accelerator;
  register_accelerator(&accelerator);
  return true;
}();

}  // namespace
}  // namespace fulgur
