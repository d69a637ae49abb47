// Devices, their properties, errors and versions.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "engine.h"
#include "operators_library.h"
#include "settings.h"

using namespace simulated_cuda;

namespace {

struct ErrorText {
  const char* name;
  const char* text;
};

// The texts are those of CUDA, for errors that programs are known to compare or print.
const std::map<cudaError_t, ErrorText>& error_texts() {
  static const auto* const texts = new std::map<cudaError_t, ErrorText>{
      {cudaSuccess, {"cudaSuccess", "no error"}},
      {cudaErrorInvalidValue, {"cudaErrorInvalidValue", "invalid argument"}},
      {cudaErrorMemoryAllocation, {"cudaErrorMemoryAllocation", "out of memory"}},
      {cudaErrorCudartUnloading, {"cudaErrorCudartUnloading", "driver shutting down"}},
      {cudaErrorInvalidConfiguration, {"cudaErrorInvalidConfiguration", "invalid configuration argument"}},
      {cudaErrorNoDevice, {"cudaErrorNoDevice", "no CUDA-capable device is detected"}},
      {cudaErrorInvalidDevice, {"cudaErrorInvalidDevice", "invalid device ordinal"}},
      {cudaErrorInvalidResourceHandle, {"cudaErrorInvalidResourceHandle", "invalid resource handle"}},
      {cudaErrorIllegalState, {"cudaErrorIllegalState", "the operation cannot be performed in the present state"}},
      {cudaErrorNotReady, {"cudaErrorNotReady", "device not ready"}},
      {cudaErrorHostMemoryAlreadyRegistered,
       {"cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"}},
      {cudaErrorHostMemoryNotRegistered,
       {"cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"}},
      {cudaErrorPeerAccessUnsupported,
       {"cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"}},
      {cudaErrorNotPermitted, {"cudaErrorNotPermitted", "operation not permitted"}},
      {cudaErrorAssert, {"cudaErrorAssert", "device-side assert triggered"}},
      {cudaErrorNotSupported, {"cudaErrorNotSupported", "operation not supported"}},
      {cudaErrorStreamCaptureUnsupported,
       {"cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"}},
      {cudaErrorStreamCaptureInvalidated,
       {"cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"}},
      {cudaErrorStreamCaptureMerge,
       {"cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"}},
      {cudaErrorStreamCaptureUnmatched,
       {"cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"}},
      {cudaErrorStreamCaptureUnjoined, {"cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"}},
      {cudaErrorStreamCaptureIsolation,
       {"cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"}},
      {cudaErrorStreamCaptureImplicit,
       {"cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream"}},
      {cudaErrorCapturedEvent,
       {"cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"}},
      {cudaErrorStreamCaptureWrongThread,
       {"cudaErrorStreamCaptureWrongThread",
        "attempt to terminate a thread-local capture sequence from another thread"}},
  };
  return *texts;
}

bool exists(int device) { return device >= 0 && device < static_cast<int>(settings().devices.size()); }

int bus_of(int device) { return 0x19 + settings().devices[static_cast<size_t>(device)]; }

}  // namespace

SIMULATED_API const char* cudaGetErrorName(cudaError_t error) {
  const auto found = error_texts().find(error);
  return found == error_texts().end() ? "unrecognized error code" : found->second.name;
}

SIMULATED_API const char* cudaGetErrorString(cudaError_t error) {
  const auto found = error_texts().find(error);
  return found == error_texts().end() ? "unrecognized error code" : found->second.text;
}

SIMULATED_API cudaError_t cudaGetLastError() {
  const cudaError_t sticky = state().failed;
  const cudaError_t error = this_thread().last_error;
  this_thread().last_error = cudaSuccess;
  return sticky != cudaSuccess ? sticky : error;
}

SIMULATED_API cudaError_t cudaPeekAtLastError() {
  return state().failed != cudaSuccess ? state().failed : this_thread().last_error;
}

SIMULATED_API cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
SIMULATED_API cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

SIMULATED_API cudaError_t cudaGetDeviceCount(int* count) {
  // Every program calls this first. LibTorch does not call it while its libraries are being loaded.
  load_operators();
  *count = static_cast<int>(settings().devices.size());
  if (*count > 0) return cudaSuccess;
  const Lock lock(state().mutex);
  return fail(cudaErrorNoDevice, __func__);
}

SIMULATED_API cudaError_t cudaGetDevice(int* device) {
  if (state().ending) return cudaErrorCudartUnloading;
  *device = this_thread().device;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaSetDevice(int device) {
  ENTER();
  if (!exists(device)) return fail(cudaErrorInvalidDevice, __func__);
  this_thread().device = device;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  ENTER();
  return exists(device) ? cudaSuccess : fail(cudaErrorInvalidDevice, __func__);
}

// LibTorch selects kernels by these properties. They are those of an H200, except for the memory.
SIMULATED_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  ENTER();
  if (!exists(device)) return fail(cudaErrorInvalidDevice, __func__);
  std::memset(p, 0, sizeof *p);
  std::snprintf(p->name, sizeof p->name, "Simulated CUDA device");
  p->uuid.bytes[0] = 0x5C;
  p->uuid.bytes[15] = static_cast<char>(bus_of(device));
  p->totalGlobalMem = settings().device_bytes;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 9;
  p->textureAlignment = 512;
  p->multiProcessorCount = 132;
  p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
  p->pciBusID = bus_of(device);
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 6144;
  p->l2CacheSize = 62914560;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472;
  p->managedMemory = p->concurrentManagedAccess = p->computePreemptionSupported = p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = 232448;
  p->maxBlocksPerMultiProcessor = 32;
  p->reservedSharedMemPerBlock = 1024;
  p->hostRegisterSupported = p->memoryPoolsSupported = p->clusterLaunch = 1;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  const std::pair<cudaDeviceAttr, int> known[] = {
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimY, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
      {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
      {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, p.maxGridSize[1]},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(p.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(p.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(p.sharedMemPerMultiprocessor)},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
      {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
      {cudaDevAttrPciBusId, p.pciBusID},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrCanMapHostMemory, 1},
      {cudaDevAttrHostRegisterSupported, 1},
      {cudaDevAttrConcurrentKernels, 1},
  };
  *value = 0;
  for (const auto& [name, number] : known)
    if (name == attribute) *value = number;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  ENTER();
  if (!exists(device)) return fail(cudaErrorInvalidDevice, __func__);
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", bus_of(device));
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

// There is no peer access: transfers between devices are copies and are counted as such.
SIMULATED_API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
SIMULATED_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  ENTER();
  return fail(cudaErrorPeerAccessUnsupported, __func__);
}

SIMULATED_API cudaError_t cudaDeviceSynchronize() {
  ENTER();
  for (Capture* capture : state().captures) {
    invalidate(*capture, __func__);
    return fail(cudaErrorStreamCaptureUnsupported, __func__);
  }
  if (settings().break_sync) return cudaSuccess;
  count_device_wait(state().counts.waits_device, __func__, this_thread().device);
  run_device(lock, this_thread().device);
  return state().failed;
}

SIMULATED_API cudaError_t cudaDeviceReset() { return cudaSuccess; }
SIMULATED_API cudaError_t cudaProfilerStart() { return cudaSuccess; }
SIMULATED_API cudaError_t cudaProfilerStop() { return cudaSuccess; }

SIMULATED_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, this_thread().capture_mode);
  return cudaSuccess;
}

// The driver's functions are those of the simulated libcuda.so.1.
SIMULATED_API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                                           unsigned long long,
                                                           cudaDriverEntryPointQueryResult* result) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, symbol) : nullptr;
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (*function) return cudaSuccess;
  const Lock lock(state().mutex);
  return fail(cudaErrorNotSupported, __func__, symbol);
}

SIMULATED_API cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                                  cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, result);
}
