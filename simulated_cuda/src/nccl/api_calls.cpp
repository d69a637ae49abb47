// The collectives, sends, receives and groups of nccl.h.
#include <nccl.h>

#include "ranks/report.h"
#include "work/group.h"

#define NCCL_API extern "C" __attribute__((visibility("default")))

using namespace fulgur::simulated_nccl;

namespace {

ncclResult_t call(const char* function, ncclComm_t handle, Operation operation, ncclRedOp_t op = ncclSum) {
  const auto communicator = find(handle, function);
  if (!communicator) return ncclInvalidUsage;
  if (communicator->error() != ncclSuccess) return communicator->error();
  const std::string where = std::string(function) + ": ";
  if (size_of(operation.type) == 0)
    return fail(ncclInvalidArgument, where + "unknown data type " + std::to_string(operation.type));
  if (!communicator->find_reduction(op, operation.reduction))
    return fail(ncclInvalidArgument, where + "unknown reduction " + std::to_string(op));
  if (operation.root < 0 || operation.root >= communicator->world_size())
    return fail(ncclInvalidArgument, where + "rank " + std::to_string(operation.root) + " is not one of " +
                                         std::to_string(communicator->world_size()));
  // As in NCCL, an empty message between two ranks is not sent.
  if (!operation.is_collective() && operation.count == 0) return ncclSuccess;
  return submit(communicator, operation);
}

}  // namespace

NCCL_API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                    ncclComm_t comm, cudaStream_t stream) {
  return call(__func__, comm,
              {.kind = Kind::all_reduce, .from = from, .to = to, .count = count, .type = type, .stream = stream}, op);
}

NCCL_API ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 int root, ncclComm_t comm, cudaStream_t stream) {
  return call(
      __func__, comm,
      {.kind = Kind::reduce, .from = from, .to = to, .count = count, .type = type, .root = root, .stream = stream}, op);
}

NCCL_API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  return call(
      __func__, comm,
      {.kind = Kind::broadcast, .from = from, .to = to, .count = count, .type = type, .root = root, .stream = stream});
}

NCCL_API ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

NCCL_API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                    cudaStream_t stream) {
  return call(__func__, comm,
              {.kind = Kind::all_gather, .from = from, .to = to, .count = count, .type = type, .stream = stream});
}

NCCL_API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                        ncclComm_t comm, cudaStream_t stream) {
  return call(__func__, comm,
              {.kind = Kind::reduce_scatter, .from = from, .to = to, .count = count, .type = type, .stream = stream},
              op);
}

NCCL_API ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                   cudaStream_t stream) {
  return call(__func__, comm,
              {.kind = Kind::all_to_all, .from = from, .to = to, .count = count, .type = type, .stream = stream});
}

NCCL_API ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream) {
  return call(
      __func__, comm,
      {.kind = Kind::gather, .from = from, .to = to, .count = count, .type = type, .root = root, .stream = stream});
}

NCCL_API ncclResult_t ncclScatter(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
  return call(
      __func__, comm,
      {.kind = Kind::scatter, .from = from, .to = to, .count = count, .type = type, .root = root, .stream = stream});
}

NCCL_API ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t stream) {
  return call(__func__, comm,
              {.kind = Kind::send, .from = from, .count = count, .type = type, .root = peer, .stream = stream});
}

NCCL_API ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t stream) {
  return call(__func__, comm,
              {.kind = Kind::receive, .to = to, .count = count, .type = type, .root = peer, .stream = stream});
}

NCCL_API ncclResult_t ncclGroupStart() {
  start_group();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclGroupEnd() { return end_group(true); }

NCCL_API ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  if (info) info->estimatedTime = 0;
  return end_group(false);
}
