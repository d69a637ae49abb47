#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/device/graph_capture.h"
#include "fulgur/core/export.h"

namespace fulgur {

/// A kind of device. The CPU accelerator is built in; loading libfulgur_cuda.so adds the CUDA one.
class FULGUR_API Accelerator {
 public:
  virtual ~Accelerator();
  virtual std::string name() const = 0;  ///< `cpu`, `cuda`
  virtual int64_t device_count() const = 0;
  /// Why `device_count()` is 0 although the machine has a device; empty if there is none, or none is visible.
  virtual std::string why_no_device() const { return {}; }
  virtual at::Device device(int64_t index) const = 0;
  virtual std::string device_name(int64_t index) const = 0;
  /// Waits until the device is idle; never called in a step.
  virtual void synchronize(int64_t index) const = 0;
  /// Seconds the device has been busy since the process started; nullopt if not measured.
  virtual std::optional<double> busy_s(int64_t /*index*/) const { return std::nullopt; }
  /// Why the device cannot compute in `dtype`; empty if it can.
  virtual std::string cannot_compute_in(at::ScalarType /*dtype*/, int64_t /*index*/) const { return {}; }
  /// Records the work of a device; nullptr if it cannot be recorded.
  virtual std::unique_ptr<GraphCapture> make_graph_capture(int64_t /*index*/) const { return nullptr; }
};

/// The accelerator of that name, or nullptr. For `cuda`, loads libfulgur_cuda.so (and libtorch_cuda.so) first.
FULGUR_API Accelerator* find_accelerator(const std::string& name);
/// Why `find_accelerator("cuda")` returned nullptr: no driver, no CUDA part of LibTorch, no device.
FULGUR_API std::string why_no_cuda();
/// What to do if `find_accelerator("cuda")` returned nullptr although the driver has a device, so that CUDA is
/// installed but broken; empty otherwise.
FULGUR_API std::string how_to_get_cuda();
/// True for a build configured with FULGUR_LIBTORCH=cpu: it falls back to the CPU if CUDA is broken.
FULGUR_API bool built_for_cpu();
/// Called by libfulgur_cuda.so. Keeps the pointer for the life of the process.
FULGUR_API void register_accelerator(Accelerator* accelerator);
/// Number of accelerators registered so far, including the CPU's. The number grows when a library registers one.
FULGUR_API int64_t accelerator_count();

}  // namespace fulgur
