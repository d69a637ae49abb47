// Communicators of nccl.h: creation, queries and destruction. Each call is complete when it returns, so
// ncclInProgress never occurs.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>

#include "ranks/communicator.h"
#include "ranks/report.h"
#include "ranks/split.h"
#include "work/group.h"

#define NCCL_API extern "C" __attribute__((visibility("default")))

using namespace fulgur::simulated_nccl;

namespace {

constexpr uint64_t kMark = 0x4343'4e73'6d69'7353;

struct UniqueId {
  uint64_t mark;
  Origin origin;
};
static_assert(sizeof(UniqueId) <= sizeof(ncclUniqueId));

int current_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

// The bus id of a device, which identifies the machine's devices in every process.
int gpu_of(int device) {
  int bus = 0;
  return cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device) == cudaSuccess ? bus : -1;
}

ncclResult_t make(const char* function, ncclComm_t* handle, int world_size, int rank, const ncclUniqueId& bytes,
                  int device) {
  const std::string where = std::string(function) + ": ";
  UniqueId id{};
  std::memcpy(&id, bytes.internal, sizeof id);
  if (!handle || world_size < 1 || rank < 0 || rank >= world_size)
    return fail(ncclInvalidArgument,
                where + "there is no rank " + std::to_string(rank) + " of " + std::to_string(world_size));
  if (id.mark != kMark) return fail(ncclInvalidArgument, where + "the unique id was not created by ncclGetUniqueId");
  if (device < 0) return fail(ncclUnhandledCudaError, where + "there is no current CUDA device");
  std::string error;
  auto segment = Segment::attach(id.origin, world_size, rank, gpu_of(device), error);
  if (!segment) return fail(ncclInvalidUsage, where + error);
  const auto communicator = std::make_shared<Communicator>(world_size, rank, device, std::move(segment), id.origin);
  *handle = new_handle(communicator);
  return join(communicator);
}

}  // namespace

NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* bytes) {
  const UniqueId id{.mark = kMark, .origin = Segment::create()};
  if (id.origin.descriptor < 0) return fail(ncclSystemError, "ncclGetUniqueId: shared memory cannot be created");
  *bytes = {};
  std::memcpy(bytes->internal, &id, sizeof id);
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int world_size, ncclUniqueId id, int rank) {
  return make(__func__, comm, world_size, rank, id, current_device());
}

NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world_size, ncclUniqueId id, int rank,
                                             ncclConfig_t*) {
  return make(__func__, comm, world_size, rank, id, current_device());
}

NCCL_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int world_size, int rank, int ids, ncclUniqueId* id,
                                               ncclConfig_t*) {
  if (ids < 1) return fail(ncclInvalidArgument, "ncclCommInitRankScalable: no unique id was passed");
  return make(__func__, comm, world_size, rank, id[0], current_device());
}

NCCL_API ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  start_group();
  for (int i = 0; i < count && result == ncclSuccess; ++i)
    result = make(__func__, &comms[i], count, i, id, devices ? devices[i] : i);
  const ncclResult_t ended = end_group(true);
  return result == ncclSuccess ? ended : result;
}

NCCL_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  FIND_COMMUNICATOR(parent, comm);
  if (in_group()) return fail(ncclInvalidUsage, "ncclCommSplit: a split inside a group is not simulated");
  std::vector<int> all;
  for (int rank = 0; rank < parent->world_size(); ++rank) all.push_back(rank);
  return split(*parent, all, color, key, made);
}

NCCL_API ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* made, ncclConfig_t*,
                                     int flags) {
  FIND_COMMUNICATOR(parent, comm);
  if (in_group()) return fail(ncclInvalidUsage, "ncclCommShrink: a shrink inside a group is not simulated");
  std::vector<int> stay;
  for (int rank = 0; rank < parent->world_size(); ++rank)
    if (std::find(excluded, excluded + count, rank) == excluded + count) stay.push_back(rank);
  if (std::find(stay.begin(), stay.end(), parent->rank()) == stay.end())
    return fail(ncclInvalidUsage, "ncclCommShrink: " + parent->place() + " is excluded, and must not call it");
  if (flags & NCCL_SHRINK_ABORT)
    parent->abort();
  else
    parent->drain();
  return split(*parent, stay, 0, parent->rank(), made);
}

NCCL_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  FIND_COMMUNICATOR(communicator, comm);
  communicator->drain();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  const auto communicator = take(comm, __func__);
  if (!communicator) return ncclInvalidUsage;
  communicator->drain();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  const auto communicator = take(comm, __func__);
  if (!communicator) return ncclInvalidUsage;
  communicator->abort();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  FIND_COMMUNICATOR(communicator, comm);
  communicator->abort();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  FIND_COMMUNICATOR(communicator, comm);
  *error = communicator->error();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  FIND_COMMUNICATOR(communicator, comm);
  *count = communicator->world_size();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  FIND_COMMUNICATOR(communicator, comm);
  *device = communicator->device();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  FIND_COMMUNICATOR(communicator, comm);
  *rank = communicator->rank();
  return ncclSuccess;
}
