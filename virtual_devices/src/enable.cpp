#include <ATen/core/grad_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <mutex>

#include "device_allocator.h"
#include "device_table.h"
#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "guard.h"
#include "registrations.h"

namespace fulgur {
namespace {

class VirtualAccelerator final : public Accelerator {
 public:
  std::string name() const override { return "virtual"; }
  int64_t device_count() const override { return virtual_device_count(); }
  at::Device device(int64_t index) const override { return virtual_device(index); }
  std::string device_name(int64_t) const override { return "simulated on the CPU"; }
  void synchronize(int64_t) const override {}
  std::optional<double> busy_s(int64_t index) const override {
    return 1e-9 * static_cast<double>(virtual_devices::DeviceTable::instance()[index].busy_ns.load());
  }
};

void set_memory_of_environment() {
  const char* const text = std::getenv("FULGUR_VIRTUAL_MEMORY");
  if (text == nullptr) return;
  const auto bytes = parse_whole<int64_t>(text);
  if (!bytes || *bytes < 0)
    throw ConfigError(
        cat("[virtual_devices.enable] FULGUR_VIRTUAL_MEMORY must be a number of bytes, or 0 for no limit; "
            "got '",
            escape_controls(text), "'. Correct it, or unset it."));
  set_virtual_device_memory(*bytes);
}

}  // namespace

void enable_virtual_devices(int64_t count) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& table = virtual_devices::DeviceTable::instance();
  if (count < 1 || count > kMostVirtualDevices)
    throw ConfigError(
        cat("[virtual_devices.enable] there can be 1 to ", kMostVirtualDevices, " virtual devices; got ", count, "."));
  if (table.count() > 0) {
    if (count > table.count())
      throw ConfigError(cat("[virtual_devices.enable] this process has ", table.count(),
                            " virtual devices and cannot get more later; got ", count,
                            ". Request the largest number first."));
    return;
  }
  if (at::isPrivateUse1HooksRegistered())
    throw ConfigError(
        "[virtual_devices.enable] another backend occupies LibTorch's only slot for out-of-tree backends "
        "(PrivateUse1). "
        "Do not load its plug-in.");
  c10::register_privateuse1_backend("virtual");
  virtual_devices::register_hooks();
  c10::SetAllocator(at::kPrivateUse1, &virtual_devices::allocator());
  static const c10::impl::DeviceGuardImplRegistrar registrar(at::kPrivateUse1, new virtual_devices::Guard);
  virtual_devices::register_kernels();
  virtual_devices::register_recurrent();
  virtual_devices::register_autocast();
  table.set_count(count);
  set_memory_of_environment();
  static VirtualAccelerator accelerator;
  register_accelerator(&accelerator);
}

}  // namespace fulgur
