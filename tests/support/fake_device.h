#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

namespace fulgur::test {

/// A device that computes nothing: its clock is what a test sets, and its allocator's counters too. It stands in for
/// CUDA in code that uses c10's interface for any device.
struct FakeDevice {
  static constexpr at::DeviceType kType = at::DeviceType::PrivateUse1;
  static at::Device device() { return {kType, 0}; }
  static FakeDevice& get() {
    static FakeDevice fake;
    return fake;
  }

  double now_ms = 0;         ///< of its work
  double behind_ms = 0;      ///< how far it is after the host
  int64_t waits = 0;         ///< times that the host waited for an event
  double waited_for_ms = 0;  ///< the last of them
  int64_t events = 0;        ///< that live
  c10::CachingDeviceAllocator::DeviceStats stats;
  bool begun = true;  ///< its allocator
  int64_t peak_resets = 0;

 private:
  struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
    c10::Device exchangeDevice(c10::Device) const override { return device(); }
    c10::Device getDevice() const override { return device(); }
    c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device()); }
    c10::Stream exchangeStream(c10::Stream) const noexcept override {
      return c10::Stream(c10::Stream::DEFAULT, device());
    }
    void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag flag) const override {
      TORCH_CHECK(flag == c10::EventFlag::BACKEND_DEFAULT, "the event would have no time");
      if (*event == nullptr) *event = new double, ++get().events;
      *static_cast<double*>(*event) = get().now_ms;
    }
    bool queryEvent(void* event) const override {
      return *static_cast<double*>(event) <= std::max(get().now_ms - get().behind_ms, get().waited_for_ms);
    }
    void synchronizeEvent(void* event) const override {
      ++get().waits;
      get().waited_for_ms = *static_cast<double*>(event);
    }
    double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
      return *static_cast<double*>(to) - *static_cast<double*>(from);
    }
    void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
      if (event == nullptr) return;
      delete static_cast<double*>(event);
      --get().events;
    }
  };

  struct Allocator final : c10::DeviceAllocator {
    bool initialized() override { return get().begun; }
    void emptyCache(c10::MempoolId_t) override {}
    void recordStream(const c10::DataPtr&, c10::Stream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return get().stats; }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override { ++get().peak_resets; }
    c10::DataPtr allocate(size_t) override { return {nullptr, device()}; }
    void copy_data(void*, const void*, size_t) const override {}
  };

  FakeDevice() {
    static Guard guard;
    static Allocator allocator;
    c10::impl::registerDeviceGuard(kType, &guard);
    c10::SetAllocator(kType, &allocator);
  }
};

}  // namespace fulgur::test
