#include "device_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "device_table.h"
#include "guard.h"

namespace fulgur::virtual_devices {
namespace {

// Bytes of a device that are about to be allocated. They stay counted once a block holds them; else, the host's memory
// was not enough.
class CountedBytes {
 public:
  // Throws before anything is counted or allocated if the device is full.
  CountedBytes(c10::DeviceIndex device, int64_t bytes) : entry_(DeviceTable::instance()[device]), bytes_(bytes) {
    const int64_t limit = DeviceTable::instance().memory_limit.load(std::memory_order_relaxed);
    now_ = entry_.allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (limit > 0 && now_ > limit) {
      entry_.allocated.fetch_sub(bytes, std::memory_order_relaxed);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "virtual:", static_cast<int>(device),
                       " is out of memory: tensors hold ", now_ - bytes, " of ", limit, " bytes, and ", bytes,
                       " more were requested");
    }
  }
  ~CountedBytes() {
    if (!held_) entry_.allocated.fetch_sub(bytes_, std::memory_order_relaxed);
  }
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;

  void are_held() {
    held_ = true;
    int64_t peak = entry_.peak_allocated.load(std::memory_order_relaxed);
    while (now_ > peak && !entry_.peak_allocated.compare_exchange_weak(peak, now_, std::memory_order_relaxed)) {
    }
  }

 private:
  DeviceEntry& entry_;
  int64_t bytes_, now_ = 0;
  bool held_ = false;
};

// Memory with its cleanup, which depends on where it comes from.
struct Block {
  c10::DataPtr memory;   // from the CPU's allocator
  c10::Storage storage;  // or the storage of a CPU tensor
  int64_t bytes;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  DeviceTable::instance()[block->device].allocated.fetch_sub(block->bytes, std::memory_order_relaxed);
  delete block;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    CountedBytes counted(device, static_cast<int64_t>(bytes));
    auto* block = new Block{.memory = c10::GetCPUAllocator()->allocate(bytes),
                            .storage = {},
                            .bytes = static_cast<int64_t>(bytes),
                            .device = device};
    counted.are_held();
    return {block->memory.get(), block, &release, virtual_device(device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override { std::memcpy(to, from, count); }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const DeviceEntry& entry = DeviceTable::instance()[device];
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocated_bytes[kAll].current = stats.reserved_bytes[kAll].current = entry.allocated;
    stats.allocated_bytes[kAll].peak = stats.reserved_bytes[kAll].peak = entry.peak_allocated;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    DeviceEntry& entry = DeviceTable::instance()[device];
    entry.peak_allocated = entry.allocated.load();
  }
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* instance = new Allocator;
  return *instance;
}

c10::Storage take_storage(const c10::Storage& of_cpu, at::Device device) {
  CountedBytes counted(device.index(), static_cast<int64_t>(of_cpu.nbytes()));
  auto* block = new Block{
      .memory = {}, .storage = of_cpu, .bytes = static_cast<int64_t>(of_cpu.nbytes()), .device = device.index()};
  counted.are_held();
  c10::DataPtr data(of_cpu.mutable_data(), block, &release, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), of_cpu.nbytes(), std::move(data), &allocator(),
                      /*resizable=*/true);
}

}  // namespace fulgur::virtual_devices
