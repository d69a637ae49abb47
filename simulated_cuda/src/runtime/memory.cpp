// Device memory and pinned memory: both are pages of this process; a table tells them apart.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "engine.h"
#include "settings.h"

namespace simulated_cuda {
namespace {

// No more than this much of an allocation is poisoned, to save time.
constexpr size_t kMostPoisoned = size_t{64} << 20;
constexpr size_t kPage = 4096;

using Table = std::map<uintptr_t, Allocation>;
Table& table() {
  static Table* const one = new Table;
  return *one;
}

std::map<int, size_t>& live_bytes() {
  static auto* const one = new std::map<int, size_t>;
  return *one;
}

void* map_pages(size_t bytes, cudaMemoryType type, int device) {
  const size_t mapped = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  void* const pages = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  table()[reinterpret_cast<uintptr_t>(pages)] = {
      .bytes = bytes, .mapped = mapped, .type = type, .device = device, .registered = false};
  return pages;
}

// The pages are unmapped, so that a later access causes a fault at the place of the mistake.
cudaError_t release(void* address, cudaMemoryType type, const char* function) {
  const auto found = table().find(reinterpret_cast<uintptr_t>(address));
  if (found == table().end() || found->second.type != type || found->second.registered)
    return fail(cudaErrorInvalidValue, function, "there is no such allocation, or it was already freed");
  if (type == cudaMemoryTypeDevice) {
    live_bytes()[found->second.device] -= found->second.bytes;
    state().counts.device_bytes_live -= found->second.bytes;
  }
  munmap(address, found->second.mapped);
  table().erase(found);
  return cudaSuccess;
}

}  // namespace

const Allocation* find_allocation(const void* address, const void** start) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  auto found = table().upper_bound(place);
  if (found == table().begin()) return nullptr;
  --found;
  if (place >= found->first + std::max<size_t>(found->second.bytes, 1)) return nullptr;
  if (start) *start = reinterpret_cast<const void*>(found->first);
  return &found->second;
}

void* new_device_memory(size_t bytes, int device) {
  size_t& live = live_bytes()[device];
  if (live + bytes > settings().device_bytes) return nullptr;
  void* const memory = map_pages(bytes, cudaMemoryTypeDevice, device);
  if (!memory) return nullptr;
  if (settings().poison >= 0) std::memset(memory, settings().poison, std::min(bytes, kMostPoisoned));
  live += bytes;
  SimulatedCudaCounts& counts = state().counts;
  counts.device_bytes_live += bytes;
  counts.device_bytes_peak = std::max(counts.device_bytes_peak, counts.device_bytes_live);
  return memory;
}

}  // namespace simulated_cuda

using namespace simulated_cuda;

SIMULATED_API cudaError_t cudaMalloc(void** address, size_t bytes) {
  ENTER();
  NOT_IN_CAPTURE();
  if (address == nullptr) return fail(cudaErrorInvalidValue, __func__);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  *address = new_device_memory(bytes, this_thread().device);
  if (*address == nullptr) {
    // This is not an error of the program: the caller may release memory and retry.
    return this_thread().last_error = cudaErrorMemoryAllocation;
  }
  ++state().counts.mallocs;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaFree(void* address) {
  ENTER();
  NOT_IN_CAPTURE();
  if (address == nullptr) return cudaSuccess;
  ++state().counts.frees;
  count_wait(state().counts.waits_free, __func__, nullptr);
  run_all(lock);
  return release(address, cudaMemoryTypeDevice, __func__);
}

SIMULATED_API cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (stream->capture) {
    invalidate(*stream->capture, __func__);
    return fail(cudaErrorNotSupported, __func__, "memory nodes of graphs are not simulated");
  }
  *address = new_device_memory(bytes, stream->device);
  if (*address == nullptr) return this_thread().last_error = cudaErrorMemoryAllocation;
  ++state().counts.mallocs;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  ++state().counts.frees;
  return submit(lock, *stream,
                Work{.kind = Work::Kind::host_function,
                     .name = "cudaFreeAsync",
                     .run =
                         [address] {
                           const Lock locked(state().mutex);
                           release(address, cudaMemoryTypeDevice, "cudaFreeAsync");
                         }},
                __func__);
}

SIMULATED_API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  ENTER();
  NOT_IN_CAPTURE();
  *address = map_pages(bytes, cudaMemoryTypeHost, this_thread().device);
  if (*address == nullptr) return this_thread().last_error = cudaErrorMemoryAllocation;
  ++state().counts.host_mallocs;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

SIMULATED_API cudaError_t cudaFreeHost(void* address) {
  ENTER();
  NOT_IN_CAPTURE();
  if (address == nullptr) return cudaSuccess;
  ++state().counts.host_frees;
  count_wait(state().counts.waits_free, __func__, nullptr);
  run_all(lock);
  return release(address, cudaMemoryTypeHost, __func__);
}

SIMULATED_API cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  ENTER();
  NOT_IN_CAPTURE();
  if (find_allocation(address)) return fail(cudaErrorHostMemoryAlreadyRegistered, __func__);
  table()[reinterpret_cast<uintptr_t>(address)] = {
      .bytes = bytes, .mapped = bytes, .type = cudaMemoryTypeHost, .device = this_thread().device, .registered = true};
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaHostUnregister(void* address) {
  ENTER();
  NOT_IN_CAPTURE();
  const auto found = table().find(reinterpret_cast<uintptr_t>(address));
  if (found == table().end() || !found->second.registered) return fail(cudaErrorHostMemoryNotRegistered, __func__);
  run_all(lock);
  table().erase(found);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  ENTER();
  const Allocation* found = find_allocation(host);
  if (!found || found->type != cudaMemoryTypeHost) return fail(cudaErrorInvalidValue, __func__);
  *device = host;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  ENTER();
  *attributes = {};
  const Allocation* found = find_allocation(address);
  attributes->type = found ? found->type : cudaMemoryTypeUnregistered;
  attributes->device = found ? found->device : -2;
  if (!found) return cudaSuccess;
  attributes->devicePointer = const_cast<void*>(address);
  if (found->type == cudaMemoryTypeHost) attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ENTER();
  *total = settings().device_bytes;
  *free = *total - live_bytes()[this_thread().device];
  return cudaSuccess;
}
