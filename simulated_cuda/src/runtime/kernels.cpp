// Kernel launches, and the functions that nvcc's code calls to register kernels. A kernel computes nothing here; the
// operators' library enqueues the computation after it.
#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "engine.h"
#include "memory.h"

using namespace simulated_cuda;

namespace {

constexpr unsigned kMostGrid = 65535, kMostThreads = 1024;
constexpr size_t kMostShared = 232448;

auto& kernel_names() {
  static auto* const names = new std::unordered_map<const void*, const char*>;
  return *names;
}

struct Variable {
  void* memory = nullptr;
  size_t bytes = 0;
};

auto& variables() {
  static auto* const all = new std::unordered_map<const void*, Variable>;
  return *all;
}

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
};
thread_local Configuration next_launch;

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t handle,
                   const char* function) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (stream->device != this_thread().device)
    return fail(cudaErrorInvalidResourceHandle, function, "the stream is not on the current device");
  const bool empty = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  if (empty || grid.y > kMostGrid || grid.z > kMostGrid || size_t{block.x} * block.y * block.z > kMostThreads ||
      shared > kMostShared)
    return fail(cudaErrorInvalidConfiguration, function);
  const auto found = kernel_names().find(kernel);
  const char* const name = found == kernel_names().end() ? "kernel" : found->second;
  if (const cudaError_t error = check_computes(name, function)) return error;
  if (!stream->capture) ++state().counts.launches;
  return submit(lock, *stream, Work{.kind = Work::Kind::kernel, .name = name}, function);
}

}  // namespace

SIMULATED_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
SIMULATED_API void __cudaRegisterFatBinaryEnd(void**) {}
SIMULATED_API void __cudaUnregisterFatBinary(void**) {}
SIMULATED_API char __cudaInitModule(void**) { return 1; }

SIMULATED_API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                                          dim3*, int*) {
  const Lock lock(state().mutex);
  kernel_names()[host] = name;
}

SIMULATED_API void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t bytes, int, int) {
  const Lock lock(state().mutex);
  variables()[host] = {nullptr, bytes};
}

SIMULATED_API void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, size_t bytes, int, int) {
  *host = std::calloc(1, bytes);
}

SIMULATED_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  next_launch = {grid, block, shared, stream};
  return 0;
}

SIMULATED_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = next_launch.grid;
  *block = next_launch.block;
  *shared = next_launch.shared;
  *static_cast<void**>(stream) = next_launch.stream;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared,
                                           cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream, __func__);
}

SIMULATED_API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared,
                                                      cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream, __func__);
}

SIMULATED_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return launch(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream, __func__);
}

SIMULATED_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host)), cudaSuccess;
}

SIMULATED_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared,
                                             cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream, "cudaLaunchKernel");
}

SIMULATED_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = kMostThreads;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kMostShared);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
SIMULATED_API cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }

SIMULATED_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
  *blocks = std::max(1, 2048 / std::max(threads, 1));
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                                 int threads, size_t shared, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}

// Device variables. Kernels do not read them here, so copies into them have no effect.
SIMULATED_API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  ENTER();
  const auto found = variables().find(symbol);
  if (found == variables().end()) return fail(cudaErrorInvalidValue, __func__);
  if (!found->second.memory) found->second.memory = new_device_memory(found->second.bytes, this_thread().device);
  *address = found->second.memory;
  return *address ? cudaSuccess : cudaErrorMemoryAllocation;
}
