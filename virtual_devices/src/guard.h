#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

#include "device_table.h"

namespace fulgur::virtual_devices {

/// The current device of this thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);

/// Makes the devices known to LibTorch. Work is done when the call returns, so there is one stream, and events have
/// always completed.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    set_current_device(device.index());
    return before;
  }
  at::Device getDevice() const override { return virtual_device(current_device()); }
  void setDevice(at::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(at::Device device) const noexcept override { set_current_device(device.index()); }
  c10::Stream getStream(at::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, with_index(device));
  }
  c10::Stream getDefaultStream(at::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(at::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(DeviceTable::instance().count());
  }

  // An event is the time of its recording, in nanoseconds.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Moment;
    *static_cast<Moment*>(*event) = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Moment*>(to) - *static_cast<Moment*>(from)).count();
  }

 private:
  using Moment = std::chrono::steady_clock::time_point;
  static at::Device with_index(at::Device device) {
    return device.has_index() ? device : virtual_device(current_device());
  }
};

}  // namespace fulgur::virtual_devices
