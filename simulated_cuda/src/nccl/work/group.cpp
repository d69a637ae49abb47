#include "work/group.h"

#include <algorithm>

#include "ranks/report.h"
#include "work/job.h"

namespace fulgur::simulated_nccl {
namespace {

struct Part {
  std::shared_ptr<Communicator> communicator;
  std::vector<Operation> operations = {};
};

struct Group {
  int depth = 0;
  std::vector<Part> parts;
  std::vector<std::shared_ptr<Communicator>> joining;
};

Group& group() {
  thread_local Group mine;
  return mine;
}

/// `stream` waits for all work that `other` has now.
bool wait_for(cudaStream_t stream, cudaStream_t other) {
  cudaEvent_t event = nullptr;
  return cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
         cudaEventRecord(event, other) == cudaSuccess && cudaStreamWaitEvent(stream, event, 0) == cudaSuccess &&
         cudaEventDestroy(event) == cudaSuccess;
}

/// Enqueues the operations as one piece of work on the first of their streams. The other streams wait for it, as with
/// NCCL.
ncclResult_t start(Part& part) {
  const cudaStream_t stream = part.operations.front().stream;
  std::vector<cudaStream_t> others;
  for (const Operation& operation : part.operations)
    if (operation.stream != stream && std::find(others.begin(), others.end(), operation.stream) == others.end())
      others.push_back(operation.stream);
  for (const cudaStream_t other : others)
    if (!wait_for(stream, other)) return fail(ncclUnhandledCudaError, "streams of a group cannot wait for each other");
  const ncclResult_t result = enqueue(part.communicator, std::move(part.operations), stream);
  for (const cudaStream_t other : others)
    if (!wait_for(other, stream)) return fail(ncclUnhandledCudaError, "streams of a group cannot wait for each other");
  return result;
}

}  // namespace

void start_group() { ++group().depth; }
bool in_group() { return group().depth > 0; }

ncclResult_t end_group(bool runs) {
  Group& open = group();
  if (open.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(open, {});
  ncclResult_t result = ncclSuccess;
  for (const auto& communicator : ended.joining)
    if (const ncclResult_t joined = communicator->wait_for_all(); joined != ncclSuccess) result = joined;
  for (Part part : ended.parts)
    if (const ncclResult_t started = runs ? start(part) : ncclSuccess; started != ncclSuccess) result = started;
  return result;
}

ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, const Operation& operation) {
  if (!in_group()) return enqueue(communicator, {operation}, operation.stream);
  auto& parts = group().parts;
  auto part =
      std::find_if(parts.begin(), parts.end(), [&](const Part& known) { return known.communicator == communicator; });
  if (part == parts.end()) part = parts.insert(part, {.communicator = communicator});
  part->operations.push_back(operation);
  return ncclSuccess;
}

ncclResult_t join(const std::shared_ptr<Communicator>& communicator) {
  if (!in_group()) return communicator->wait_for_all();
  group().joining.push_back(communicator);
  return ncclSuccess;
}

}  // namespace fulgur::simulated_nccl
