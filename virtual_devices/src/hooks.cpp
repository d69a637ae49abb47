#include "registrations.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "device_allocator.h"
#include "device_table.h"
#include "guard.h"

namespace fulgur::virtual_devices {
namespace {

thread_local c10::DeviceIndex current = 0;

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(DeviceTable::instance().count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return DeviceTable::instance()[device < 0 ? current : device].generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  // All memory belongs to the process.
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = allocator().allocate(bytes);
    if (storage.data() != nullptr) std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

c10::DeviceIndex current_device() { return current; }
void set_current_device(c10::DeviceIndex index) { current = index; }

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace fulgur::virtual_devices
