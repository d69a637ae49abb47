// One rank of a test of the simulated NCCL: nccl_probe SCENARIO RANK WORLD FOLDER. Exits with 0 if everything holds.
#include "nccl_probe.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

namespace fulgur::test {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

ncclUniqueId read_id(const std::filesystem::path& path) {
  ncclUniqueId id;
  std::ifstream(path, std::ios::binary).read(id.internal, sizeof id.internal);
  return id;
}

}  // namespace

void sleep_on_stream(void*) { sleep_ms(50); }

void Rank::mark(const std::string& name) const {
  std::ofstream(folder / (name + ".part")) << "done";
  std::filesystem::rename(folder / (name + ".part"), folder / name);
}

void Rank::wait_for_mark(const std::string& name) const {
  while (!std::filesystem::exists(folder / name)) sleep_ms(2);
}

ncclResult_t Rank::join(int device) {
  PROBE_CHECK(cudaSetDevice(device) == cudaSuccess);
  PROBE_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  if (rank == 0) {
    ncclUniqueId id;
    PROBE_CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    std::ofstream(folder / "id.part", std::ios::binary).write(id.internal, sizeof id.internal);
    std::filesystem::rename(folder / "id.part", folder / "id");
  }
  wait_for_mark("id");
  return ncclCommInitRank(&comm, world, read_id(folder / "id"), rank);
}

namespace {

/// Each rank calls something else.
void probe_mismatch(Rank& r, const std::string& what) {
  const OnDevice<float> a(64), b(64);
  const bool other = r.rank == 1;
  ncclResult_t result = ncclSuccess;
  if (what == "operation")
    result = other ? ncclAllGather(a.get(), b.get(), 10, ncclFloat32, r.comm, r.stream)
                   : ncclAllReduce(a.get(), b.get(), 10, ncclFloat32, ncclSum, r.comm, r.stream);
  if (what == "count")
    result = ncclAllReduce(a.get(), b.get(), other ? 10 : 11, ncclFloat32, ncclSum, r.comm, r.stream);
  if (what == "type")
    result = ncclAllReduce(a.get(), b.get(), 8, other ? ncclInt32 : ncclFloat32, ncclSum, r.comm, r.stream);
  if (what == "reduction")
    result = ncclAllReduce(a.get(), b.get(), 8, ncclFloat32, other ? ncclMax : ncclSum, r.comm, r.stream);
  if (what == "root") result = ncclBroadcast(a.get(), b.get(), 8, ncclFloat32, other ? 1 : 0, r.comm, r.stream);
  if (what == "message")
    result = other ? ncclRecv(b.get(), 9, ncclFloat32, 0, r.comm, r.stream)
                   : ncclSend(a.get(), 10, ncclFloat32, 1, r.comm, r.stream);
  PROBE_CHECK(result == ncclSuccess);
  r.wait();
  ncclResult_t error = ncclSuccess;
  PROBE_CHECK(ncclCommGetAsyncError(r.comm, &error) == ncclSuccess);
  std::_Exit(error == ncclInvalidUsage ? 3 : 0);
}

/// The peer never comes: nothing notices until the communicator is aborted.
void expect_stuck_until_abort(const Rank& r) {
  const OnDevice<float> memory(8);
  PROBE_CHECK(ncclAllReduce(memory.get(), memory.get(), 8, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
  std::atomic<bool> aborted = false;
  std::thread aborts([&] {
    sleep_ms(700);
    ncclResult_t error = ncclInternalError;
    PROBE_CHECK(cudaStreamQuery(r.stream) == cudaErrorNotReady);
    PROBE_CHECK(ncclCommGetAsyncError(r.comm, &error) == ncclSuccess && error == ncclSuccess);
    aborted = true;
    PROBE_CHECK(ncclCommAbort(r.comm) == ncclSuccess);
  });
  r.wait();
  PROBE_CHECK(aborted);
  aborts.join();
  PROBE_CHECK(ncclAllReduce(memory.get(), memory.get(), 8, ncclFloat32, ncclSum, r.comm, r.stream) == ncclInvalidUsage);
  PROBE_CHECK(ncclCommAbort(r.comm) == ncclInvalidUsage);
}

void probe_abort(Rank& r) {
  if (r.rank == 0) {
    expect_stuck_until_abort(r);
    r.mark("aborted");
  } else {
    r.wait_for_mark("aborted");
  }
}

void probe_killed(Rank& r) {
  if (r.rank == 1) ::raise(SIGKILL);
  expect_stuck_until_abort(r);
}

void probe_timeout(Rank& r) {
  if (r.rank == 1) return r.wait_for_mark("never");
  const OnDevice<float> memory(8);
  PROBE_CHECK(ncclAllReduce(memory.get(), memory.get(), 8, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess);
  r.wait();
}

void probe_ends(Rank& r) {
  const OnDevice<int> one(std::vector<int>{1});
  PROBE_CHECK(cudaLaunchHostFunc(r.stream, sleep_on_stream, nullptr) == cudaSuccess);
  PROBE_CHECK(ncclAllReduce(one.get(), one.get(), 1, ncclInt32, ncclSum, r.comm, r.stream) == ncclSuccess);
  // Finalizing waits for what was begun; reading the memory does not, as the stream does not block.
  PROBE_CHECK(ncclCommFinalize(r.comm) == ncclSuccess);
  PROBE_CHECK(one.values()[0] == r.world);
  PROBE_CHECK(ncclCommDestroy(r.comm) == ncclSuccess);
  int rank = -1;
  PROBE_CHECK(ncclCommUserRank(r.comm, &rank) == ncclInvalidUsage);
  PROBE_CHECK(std::strstr(ncclGetLastError(nullptr), "destroyed") != nullptr);
}

/// A captured all-reduce runs at each launch of its graph.
void probe_graph(Rank& r) {
  const OnDevice<int> value(std::vector<int>{1});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runs = nullptr;
  PROBE_CHECK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  PROBE_CHECK(ncclAllReduce(value.get(), value.get(), 1, ncclInt32, ncclSum, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(cudaStreamEndCapture(r.stream, &graph) == cudaSuccess &&
              cudaGraphInstantiate(&runs, graph, 0) == cudaSuccess);
  int expected = 1;
  for (int i = 0; i < 5; ++i, expected *= r.world) PROBE_CHECK(cudaGraphLaunch(runs, r.stream) == cudaSuccess);
  PROBE_CHECK(ncclAllReduce(value.get(), value.get(), 1, ncclInt32, ncclSum, r.comm, r.stream) == ncclSuccess);
  r.wait();
  PROBE_CHECK(value.values()[0] == expected * r.world);
}

int run(const std::string& scenario, Rank& r) {
  if (scenario == "one_process") return probe_one_process(r), 0;
  if (scenario == "wrong_world") {
    if (r.rank == 1) r.world = 3;
    if (r.rank == 1) r.wait_for_mark("id");
  }
  if (scenario == "dies_in_init" && r.rank == 1) {
    r.wait_for_mark("id");
    ::raise(SIGKILL);
  }
  if (scenario == "one_gpu") return r.join(0) == ncclInvalidUsage ? 0 : 1;
  if (scenario == "one_gpu_each") return r.join(0) == ncclSuccess ? 0 : 1;
  PROBE_CHECK(r.join(r.rank) == ncclSuccess);
  if (scenario == "collectives")
    probe_collectives(r);
  else if (scenario == "large")
    probe_large(r);
  else if (scenario == "premultiplied")
    probe_premultiplied(r);
  else if (scenario == "half_in_float")
    probe_half_in_float(r);
  else if (scenario == "group_orders")
    probe_group_orders(r);
  else if (scenario == "group_of_collectives")
    probe_group_of_collectives(r);
  else if (scenario == "two_streams")
    probe_two_streams(r);
  else if (scenario == "split")
    probe_split(r);
  else if (scenario == "shrink")
    probe_shrink(r);
  else if (scenario == "abort")
    probe_abort(r);
  else if (scenario == "killed")
    probe_killed(r);
  else if (scenario == "timeout")
    probe_timeout(r);
  else if (scenario == "ends")
    probe_ends(r);
  else if (scenario == "graph")
    probe_graph(r);
  else if (scenario.starts_with("mismatch:"))
    probe_mismatch(r, scenario.substr(9));
  else
    return 2;
  return 0;
}

}  // namespace
}  // namespace fulgur::test

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  fulgur::test::Rank rank{.rank = std::atoi(argv[2]), .world = std::atoi(argv[3]), .folder = argv[4]};
  return fulgur::test::run(argv[1], rank);
}
