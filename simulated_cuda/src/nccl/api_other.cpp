// The rest of nccl.h: custom reductions, memory, registered buffers, versions and error texts.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <iterator>

#include "ranks/communicator.h"
#include "ranks/report.h"

#define NCCL_API extern "C" __attribute__((visibility("default")))

using namespace fulgur::simulated_nccl;

NCCL_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* factor, ncclDataType_t type,
                                               ncclScalarResidence_t residence, ncclComm_t comm) {
  FIND_COMMUNICATOR(communicator, comm);
  if (!op || !factor || size_of(type) == 0)
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: there is no factor, or its type is unknown");
  Reduction reduction{.premultiplied = true};
  if (residence == ncclScalarDevice)
    reduction.on_device = factor;
  else
    std::memcpy(reduction.factor, factor, size_of(type));
  *op = communicator->add_reduction(reduction);
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  FIND_COMMUNICATOR(communicator, comm);
  if (!communicator->remove_reduction(op))
    return fail(ncclInvalidArgument, "ncclRedOpDestroy: there is no such reduction");
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
  return cudaMalloc(pointer, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

NCCL_API ncclResult_t ncclMemFree(void* pointer) {
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Registration has no effect here: it only makes communication on a GPU faster.
NCCL_API ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t, void** handle) {
  if (!find(comm, __func__)) return ncclInvalidUsage;
  *handle = buffer;
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  return find(comm, __func__) ? ncclSuccess : ncclInvalidUsage;
}

NCCL_API ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t, ncclWindow_t* window, int) {
  if (!find(comm, __func__)) return ncclInvalidUsage;
  *window = static_cast<ncclWindow_t>(buffer);
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return find(comm, __func__) ? ncclSuccess : ncclInvalidUsage;
}

// For kernels that communicate themselves. Declared in a header that only nvcc can read.
NCCL_API ncclResult_t ncclDevCommCreate(ncclComm_t, const void*, void*) {
  return fail(ncclInvalidUsage, "ncclDevCommCreate is not simulated");
}
NCCL_API ncclResult_t ncclDevCommDestroy(ncclComm_t, const void*) {
  return fail(ncclInvalidUsage, "ncclDevCommDestroy is not simulated");
}

NCCL_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

NCCL_API const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                    "internal error - please report this issue to the NCCL developers",
                                    "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                    "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  static_assert(ncclSuccess == 0 && ncclInvalidUsage == 5 && ncclInProgress + 1 == std::size(kTexts));
  return result >= 0 && result <= ncclInProgress ? kTexts[result] : "unknown result code";
}

NCCL_API const char* ncclGetLastError(ncclComm_t) { return last_failure(); }
