#include "fulgur/core/device/memory_stats.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

namespace fulgur {
namespace {

// getDeviceAllocator() would throw for a device whose allocator keeps no counts.
c10::DeviceAllocator* counting_allocator(const at::Device& device) {
  if (device.is_cpu()) return nullptr;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

// The value of a line such as `VmHWM:    123456 kB` in a file of /proc, in bytes; 0 if there is no such line.
int64_t bytes_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  return 0;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

c10::DeviceIndex index_of(const at::Device& device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

}  // namespace

std::optional<DeviceMemory> device_memory(const at::Device& device) {
  auto* allocator = counting_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  const auto stats = allocator->getDeviceStats(index_of(device));
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return DeviceMemory{.allocated = stats.allocated_bytes[kAll].current,
                      .peak_allocated = stats.allocated_bytes[kAll].peak,
                      .reserved = stats.reserved_bytes[kAll].current,
                      .peak_reserved = stats.reserved_bytes[kAll].peak,
                      .alloc_retries = stats.num_alloc_retries,
                      .ooms = stats.num_ooms};
}

std::optional<int64_t> free_device_memory(const at::Device& device) {
  auto* allocator = counting_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  return static_cast<int64_t>(allocator->getMemoryInfo(index_of(device)).first);
}

void release_cached_memory(const at::Device& device) {
  if (auto* allocator = counting_allocator(device)) allocator->emptyCache();
}

ProcessUsage process_usage() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime),
          .resident = bytes_in("/proc/self/status", "VmRSS"),
          .peak_resident = bytes_in("/proc/self/status", "VmHWM"),
          .minor_faults = usage.ru_minflt};
}

SystemMemory system_memory() {
  return {.total = bytes_in("/proc/meminfo", "MemTotal"), .available = bytes_in("/proc/meminfo", "MemAvailable")};
}

void reset_peak_memory(const at::Device& device) {
  // 5 resets VmHWM; if that is not allowed, the peak is that of the whole process.
  std::ofstream("/proc/self/clear_refs") << 5;
  if (auto* allocator = counting_allocator(device)) allocator->resetPeakStats(index_of(device));
}

}  // namespace fulgur
