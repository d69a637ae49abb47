#include "work/job.h"

#include "fulgur/simulated_cuda/simulated_cuda.h"
#include "ranks/report.h"
#include "work/collectives.h"

namespace fulgur::simulated_nccl {
namespace {

struct Job {
  std::shared_ptr<Communicator> communicator;
  std::vector<Operation> operations;
  std::string name;
  uint64_t ticket = Communicator::kNoTicket;
  bool ended = false;

  void run() {
    if (communicator->begin(ticket)) {
      compute(*communicator, operations);
      communicator->end(ticket);
    } else {
      communicator->drop(ticket);
    }
    ended = true;
  }
};

}  // namespace

ncclResult_t enqueue(const std::shared_ptr<Communicator>& communicator, std::vector<Operation> operations,
                     cudaStream_t stream) {
  auto job = std::make_unique<Job>();
  job->communicator = communicator;
  job->name = operations.size() == 1 ? Statement::of(operations.front(), 0).text() : "an NCCL group";
  job->operations = std::move(operations);
  // Work in a graph gets no ticket: it runs once per launch, in the order of the stream.
  if (!simulated_cuda_is_capturing(stream)) job->ticket = communicator->submit();
  const char* const name = job->name.c_str();
  const auto run = [](void* argument) { static_cast<Job*>(argument)->run(); };
  const auto destroy = [](void* argument) {
    const std::unique_ptr<Job> done(static_cast<Job*>(argument));
    if (!done->ended && done->ticket != Communicator::kNoTicket) done->communicator->drop(done->ticket);
  };
  // The default stream belongs to the current device.
  int device = 0;
  cudaGetDevice(&device);
  if (device != communicator->device()) cudaSetDevice(communicator->device());
  Job* const given = job.release();
  const int error = simulated_cuda_enqueue(stream, run, given, destroy, name, SIMULATED_CUDA_MAY_WAIT);
  if (device != communicator->device()) cudaSetDevice(device);
  return error == 0 ? ncclSuccess
                    : fail(ncclUnhandledCudaError,
                           "the work cannot be enqueued on its stream: CUDA error " + std::to_string(error));
}

}  // namespace fulgur::simulated_nccl
