#include "device_table.h"

#include <ATen/CPUGeneratorImpl.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace virtual_devices {
namespace {

size_t place_of(at::Device device) {
  return device.is_privateuseone() ? static_cast<size_t>(device.index()) : static_cast<size_t>(kMostVirtualDevices);
}

}  // namespace

DeviceTable& DeviceTable::instance() {
  // Never destroyed: tensors may outlive every static object.
  static auto* table = new DeviceTable;
  return *table;
}

void DeviceTable::set_count(int64_t count) {
  for (int64_t i = count_; i < count; ++i) (*this)[i].generator = at::detail::createCPUGenerator();
  if (count > count_) count_.store(count, std::memory_order_release);
}

void DeviceTable::count_copy(at::Device from, at::Device to, int64_t bytes) {
  Copies& between = copies_[place_of(from)][place_of(to)];
  between.copies.fetch_add(1, std::memory_order_relaxed);
  between.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

std::vector<DeviceCopies> DeviceTable::copies() const {
  const auto device_at = [](size_t place) {
    return place == static_cast<size_t>(kMostVirtualDevices) ? at::Device(at::kCPU)
                                                             : virtual_device(static_cast<int64_t>(place));
  };
  std::vector<DeviceCopies> all;
  for (size_t from = 0; from < kPlaces; ++from)
    for (size_t to = 0; to < kPlaces; ++to)
      if (const int64_t copies = copies_[from][to].copies; copies > 0)
        all.push_back(
            {.from = device_at(from), .to = device_at(to), .copies = copies, .bytes = copies_[from][to].bytes});
  return all;
}

void DeviceTable::reset_copies() {
  for (auto& row : copies_)
    for (Copies& between : row) between.copies = between.bytes = 0;
}

}  // namespace virtual_devices

void set_virtual_device_memory(int64_t bytes) {
  if (bytes < 0)
    throw ConfigError(cat("[virtual_devices.memory] the limit must be a number of bytes, or 0 for none; got ", bytes,
                          ". Correct it."));
  virtual_devices::DeviceTable::instance().memory_limit = bytes;
}

int64_t virtual_device_count() { return virtual_devices::DeviceTable::instance().count(); }

at::Device virtual_device(int64_t index) { return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

std::vector<DeviceCopies> device_copies() { return virtual_devices::DeviceTable::instance().copies(); }

int64_t bytes_between_virtual_devices() {
  int64_t bytes = 0;
  for (const DeviceCopies& copies : device_copies())
    if (!copies.from.is_cpu() && !copies.to.is_cpu()) bytes += copies.bytes;
  return bytes;
}

void reset_device_copies() { virtual_devices::DeviceTable::instance().reset_copies(); }

}  // namespace fulgur
