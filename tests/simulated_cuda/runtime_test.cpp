// The rules that the simulated runtime keeps, and negative controls: what a correct program must not do is seen.
#include <cuda_runtime_api.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fulgur/simulated_cuda/simulated_cuda.h"

namespace runtime_test {

namespace {

struct Schedule {
  explicit Schedule(uint64_t schedule) { simulated_cuda_set_schedule(schedule); }
  ~Schedule() {
    simulated_cuda_set_schedule(0);
    cudaGetLastError();
  }
};

struct Stream {
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t handle{};
};

struct Event {
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    REQUIRE(cudaEventCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t handle{};
};

struct DeviceInt {
  explicit DeviceInt(int start = 0) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&address), sizeof(int)) == cudaSuccess);
    REQUIRE(cudaMemcpy(address, &start, sizeof(int), cudaMemcpyDefault) == cudaSuccess);
  }
  ~DeviceInt() { cudaFree(address); }
  DeviceInt(const DeviceInt&) = delete;
  DeviceInt& operator=(const DeviceInt&) = delete;
  int value() const {
    int value = 0;
    CHECK(cudaMemcpy(&value, address, sizeof(int), cudaMemcpyDefault) == cudaSuccess);
    return value;
  }
  int* address = nullptr;
};

struct Pinned {
  Pinned() { REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&address), sizeof(int), 0) == cudaSuccess); }
  ~Pinned() { cudaFreeHost(address); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  int* address = nullptr;
};

struct Adding {
  int *target, *source;
  int number;
};

void add(void* argument) {
  const auto& a = *static_cast<Adding*>(argument);
  *a.target += a.number + (a.source ? *a.source : 0);
}

// As a kernel: *target += number (+ *source), when the stream reaches it.
int enqueue_add(cudaStream_t stream, int* target, int number, int* source = nullptr) {
  return simulated_cuda_enqueue(
      stream, add, new Adding{target, source, number}, [](void* a) { delete static_cast<Adding*>(a); }, "add", 0);
}

SimulatedCudaCounts counts() {
  SimulatedCudaCounts c{};
  simulated_cuda_counts(&c);
  return c;
}

}  // namespace

TEST_CASE("work of a stream runs in its order in every schedule") {
  const Schedule schedule(GENERATE(0, 1, 2, 3, 4));
  const Stream stream;
  DeviceInt value(1);
  for (int i = 0; i < 20; ++i) {
    int* const at = value.address;
    REQUIRE(simulated_cuda_enqueue(
                stream.handle, [](void* p) { *static_cast<int*>(p) = (*static_cast<int*>(p) * 3 + 1) % 1000003; }, at,
                nullptr, "step", 0) == 0);
  }
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  int expected = 1;
  for (int i = 0; i < 20; ++i) expected = (expected * 3 + 1) % 1000003;
  CHECK(value.value() == expected);
}

TEST_CASE("late: nothing runs before the host or another stream waits for it") {
  const Schedule schedule(1);
  const Stream stream;
  DeviceInt value(0);
  enqueue_add(stream.handle, value.address, 5);
  CHECK(*value.address == 0);  // device memory is this process's: a look without a wait
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(*value.address == 5);
}

TEST_CASE("a stream's wait for an event is seen, and one that is missing too") {
  const uint64_t seed = GENERATE(1, 2, 3);
  const bool waits = GENERATE(true, false);
  const Schedule schedule(seed);
  const Stream first, second;
  const Event event;
  DeviceInt source(0), target(0);
  enqueue_add(first.handle, source.address, 7);
  REQUIRE(cudaEventRecord(event.handle, first.handle) == cudaSuccess);
  if (waits) REQUIRE(cudaStreamWaitEvent(second.handle, event.handle, 0) == cudaSuccess);
  enqueue_add(second.handle, target.address, 0, source.address);
  CHECK(cudaStreamSynchronize(second.handle) == cudaSuccess);
  if (waits)
    CHECK(*target.address == 7);
  else if (seed == 1)
    CHECK(*target.address == 0);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("a wait counts for the recording before it, not for one after it") {
  const Schedule schedule(1);
  const Stream first, second;
  const Event event;
  DeviceInt source(0), target(0);
  REQUIRE(cudaEventRecord(event.handle, first.handle) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second.handle, event.handle, 0) == cudaSuccess);
  enqueue_add(first.handle, source.address, 7);
  REQUIRE(cudaEventRecord(event.handle, first.handle) == cudaSuccess);
  enqueue_add(second.handle, target.address, 0, source.address);
  CHECK(cudaStreamSynchronize(second.handle) == cudaSuccess);
  CHECK(*target.address == 0);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("a host's read without a wait sees old memory, with one the new") {
  const Schedule schedule(1);
  const Stream stream;
  DeviceInt value(7);
  Pinned host;
  *host.address = -1;
  REQUIRE(cudaMemcpyAsync(host.address, value.address, sizeof(int), cudaMemcpyDefault, stream.handle) == cudaSuccess);
  CHECK(*host.address == -1);
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(*host.address == 7);
}

TEST_CASE("a pinned buffer that is used again too early is seen; pageable memory is staged") {
  const Schedule schedule(1);
  const Stream stream;
  DeviceInt from_pinned(0), from_pageable(0);
  Pinned pinned;
  *pinned.address = 1;
  int pageable = 1;
  REQUIRE(cudaMemcpyAsync(from_pinned.address, pinned.address, sizeof(int), cudaMemcpyDefault, stream.handle) ==
          cudaSuccess);
  REQUIRE(cudaMemcpyAsync(from_pageable.address, &pageable, sizeof(int), cudaMemcpyDefault, stream.handle) ==
          cudaSuccess);
  *pinned.address = 9;
  pageable = 9;
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(*from_pinned.address == 9);
  CHECK(*from_pageable.address == 1);
}

TEST_CASE("the legacy stream and blocking streams wait for each other; others do not") {
  const Schedule schedule(1);
  const bool blocking = GENERATE(true, false);
  cudaStream_t other{};
  REQUIRE(cudaStreamCreateWithFlags(&other, blocking ? cudaStreamDefault : cudaStreamNonBlocking) == cudaSuccess);
  DeviceInt source(0), target(0);
  enqueue_add(other, source.address, 3);
  enqueue_add(nullptr, target.address, 0, source.address);
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(*target.address == (blocking ? 3 : 0));
  CHECK(cudaStreamDestroy(other) == cudaSuccess);
}

TEST_CASE("what may wait for others runs without a wait of the host, and stops no other stream") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const Stream waiting, other;
  std::atomic<bool> go{false}, ran{false};
  struct Flags {
    std::atomic<bool>&go, &ran;
  } flags{go, ran};
  REQUIRE(simulated_cuda_enqueue(
              waiting.handle,
              [](void* p) {
                auto& f = *static_cast<Flags*>(p);
                while (!f.go) std::this_thread::yield();
                f.ran = true;
              },
              &flags, nullptr, "waits for the host", SIMULATED_CUDA_MAY_WAIT) == 0);
  DeviceInt value(0);
  enqueue_add(other.handle, value.address, 1);
  CHECK(cudaStreamSynchronize(other.handle) == cudaSuccess);
  CHECK(*value.address == 1);
  CHECK_FALSE(ran.load());
  CHECK(cudaStreamQuery(waiting.handle) == cudaErrorNotReady);
  go = true;
  while (!ran) std::this_thread::yield();  // nobody synchronizes
  CHECK(cudaStreamSynchronize(waiting.handle) == cudaSuccess);
}

TEST_CASE("polling an event ends in every schedule") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const Stream stream;
  const Event event;
  DeviceInt value(0);
  for (int i = 0; i < 5; ++i) enqueue_add(stream.handle, value.address, 1);
  REQUIRE(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
  int polls = 0;
  while (cudaEventQuery(event.handle) == cudaErrorNotReady && polls < 1000) ++polls;
  CHECK(polls < 1000);
  CHECK(*value.address == 5);
}

TEST_CASE("what was destroyed, or never made, cannot be used") {
  cudaStream_t stream{};
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
  cudaEvent_t event{};
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaEventRecord(event, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventDestroy(event) == cudaErrorInvalidResourceHandle);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 64) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(memory, 0, 64, nullptr) == cudaErrorInvalidValue);
  int local = 0;
  CHECK(cudaFree(&local) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(&local) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("copies past the end of an allocation are refused") {
  std::vector<char> host(128);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 64) == cudaSuccess);
  CHECK(cudaMemcpy(memory, host.data(), 64, cudaMemcpyDefault) == cudaSuccess);
  CHECK(cudaMemcpy(memory, host.data(), 65, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host.data(), static_cast<char*>(memory) + 32, 33, cudaMemcpyDefault) == cudaErrorInvalidValue);
  cudaGetLastError();
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("fresh memory of a device is poisoned, and no more than exists is allocated") {
  unsigned* memory = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&memory), 64) == cudaSuccess);
  CHECK(*memory == 0xFFFFFFFFU);
  CHECK(cudaFree(memory) == cudaSuccess);
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  void* too_much = nullptr;
  CHECK(cudaMalloc(&too_much, free + 1) == cudaErrorMemoryAllocation);
  CHECK(too_much == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  REQUIRE(cudaMalloc(&too_much, free) == cudaSuccess);
  CHECK(cudaFree(too_much) == cudaSuccess);
}

TEST_CASE("a stream or event of another device is refused") {
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const Stream of_one;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const Event of_zero;
  CHECK(cudaEventRecord(of_zero.handle, of_one.handle) == cudaErrorInvalidResourceHandle);
  CHECK(cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, of_one.handle) == cudaErrorInvalidResourceHandle);
  CHECK(cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, nullptr) == cudaSuccess);
  CHECK(cudaLaunchKernel(nullptr, dim3(0), dim3(1), nullptr, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(cudaLaunchKernel(nullptr, dim3(1), dim3(2048), nullptr, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST_CASE("a captured graph runs at each launch, and not while it is captured") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const Stream stream;
  DeviceInt value(1);
  REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  enqueue_add(stream.handle, value.address, 10);
  CHECK(simulated_cuda_is_capturing(stream.handle) == 1);
  cudaGraph_t graph{};
  REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
  CHECK(value.value() == 1);
  cudaGraphExec_t executable{};
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
  const SimulatedCudaCounts before = counts();
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(executable, stream.handle) == cudaSuccess);
  CHECK(counts().graph_launches - before.graph_launches == 3);
  CHECK(counts().launches == before.launches);
  // A graph that was launched runs to its end, though it is destroyed meanwhile.
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, stream.handle) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(value.value() == 31);
}

TEST_CASE("a capture takes in the streams that fork from it, and they must join") {
  const Stream stream, side;
  const Event fork, join;
  const bool joins = GENERATE(true, false);
  DeviceInt value(0);
  REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaEventRecord(fork.handle, stream.handle) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(side.handle, fork.handle, 0) == cudaSuccess);
  CHECK(simulated_cuda_is_capturing(side.handle) == 1);
  enqueue_add(side.handle, value.address, 4);
  REQUIRE(cudaEventRecord(join.handle, side.handle) == cudaSuccess);
  if (joins) REQUIRE(cudaStreamWaitEvent(stream.handle, join.handle, 0) == cudaSuccess);
  cudaGraph_t graph{};
  CHECK(cudaStreamEndCapture(stream.handle, &graph) == (joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
  CHECK((graph != nullptr) == joins);
  CHECK(simulated_cuda_is_capturing(side.handle) == 0);
  if (graph) cudaGraphDestroy(graph);
  CHECK(cudaEventQuery(join.handle) == cudaErrorCapturedEvent);
  cudaGetLastError();
}

namespace {

// Captured: source = 7 on one stream, target = source on another. Returns target after one launch.
int launch_of_two_streams(bool writer_forks, bool waits) {
  const Stream first, second;
  const Event fork, written, join;
  DeviceInt source(0), target(0);
  REQUIRE(cudaStreamBeginCapture(first.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaEventRecord(fork.handle, first.handle) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second.handle, fork.handle, 0) == cudaSuccess);
  const cudaStream_t writer = writer_forks ? second.handle : first.handle,
                     reader = writer_forks ? first.handle : second.handle;
  enqueue_add(writer, source.address, 7);
  REQUIRE(cudaEventRecord(written.handle, writer) == cudaSuccess);
  if (waits) REQUIRE(cudaStreamWaitEvent(reader, written.handle, 0) == cudaSuccess);
  enqueue_add(reader, target.address, 0, source.address);
  REQUIRE(cudaEventRecord(join.handle, second.handle) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(first.handle, join.handle, 0) == cudaSuccess);
  cudaGraph_t graph{};
  REQUIRE(cudaStreamEndCapture(first.handle, &graph) == cudaSuccess);
  cudaGraphExec_t executable{};
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, first.handle) == cudaSuccess);
  CHECK(cudaStreamSynchronize(first.handle) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  return target.value();
}

}  // namespace

TEST_CASE("in a graph too a stream's wait for an event is seen, and one that is missing") {
  const bool writer_forks = GENERATE(true, false);
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    const Schedule schedule(seed);
    CHECK(launch_of_two_streams(writer_forks, true) == 7);
  }
  {
    const Schedule late(1);
    CHECK(launch_of_two_streams(writer_forks, false) == 0);
  }
  int missed = 0;
  for (uint64_t seed = 2; seed < 12; ++seed) {
    const Schedule schedule(seed);
    missed += launch_of_two_streams(writer_forks, false) == 0;
  }
  CHECK(missed > 0);
  CHECK(missed < 10);
}

TEST_CASE("launches of one graph run one after the other, on two streams too") {
  const Schedule schedule(GENERATE(0, 1, 2, 3));
  const Stream first, second;
  DeviceInt value(0);
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  REQUIRE(cudaStreamBeginCapture(first.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  enqueue_add(first.handle, value.address, 1, value.address);  // value = 2 * value + 1
  REQUIRE(cudaStreamEndCapture(first.handle, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(executable, first.handle) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(executable, second.handle) == cudaSuccess);
  CHECK(cudaStreamSynchronize(second.handle) == cudaSuccess);
  CHECK(*value.address == 3);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("a stream that is destroyed does its work, and the host does not wait for it") {
  const Schedule schedule(1);
  cudaStream_t stream{};
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  DeviceInt value(0);
  enqueue_add(stream, value.address, 5);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(*value.address == 0);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(*value.address == 5);
}

TEST_CASE("cudaDeviceSynchronize waits for the current device, not for others") {
  const Schedule schedule(1);
  DeviceInt here(0), there(0);
  const Stream of_zero;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const Stream of_one;
  enqueue_add(of_zero.handle, here.address, 1);
  enqueue_add(of_one.handle, there.address, 1);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(*there.address == 1);
  CHECK(*here.address == 0);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(*here.address == 1);
}

TEST_CASE("cudaMemcpy from device to device does not wait") {
  const Schedule schedule(1);
  DeviceInt from(3), to(0);
  REQUIRE(cudaMemcpy(to.address, from.address, sizeof(int), cudaMemcpyDefault) == cudaSuccess);
  CHECK(*to.address == 0);
  CHECK(to.value() == 3);
}

TEST_CASE("a host function must not call CUDA, nor one that a graph launches") {
  const Schedule schedule(GENERATE(0, 1));
  const bool captured = GENERATE(true, false);
  const Stream stream;
  cudaError_t error = cudaSuccess;
  const cudaHostFn_t call = [](void* result) {
    void* memory = nullptr;
    *static_cast<cudaError_t*>(result) = cudaMalloc(&memory, 64);
  };
  if (captured) REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(stream.handle, call, &error) == cudaSuccess);
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  if (captured) {
    REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
    CHECK(cudaGraphLaunch(executable, stream.handle) == cudaSuccess);
  }
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(error == cudaErrorNotPermitted);
  if (executable) CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  if (graph) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 64) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("what a capture forbids is refused and makes it invalid") {
  const Stream stream, outside;
  const Event recorded;
  REQUIRE(cudaEventRecord(recorded.handle, outside.handle) == cudaSuccess);
  DeviceInt value(0);
  std::vector<int> pageable(1);
  void* memory = nullptr;
  struct Case {
    const char* name;
    std::function<cudaError_t()> call;
    cudaError_t error;
  };
  const std::vector<Case> cases = {
      {"cudaMalloc", [&] { return cudaMalloc(&memory, 64); }, cudaErrorStreamCaptureUnsupported},
      {"cudaFree", [&] { return cudaFree(value.address); }, cudaErrorStreamCaptureUnsupported},
      {"cudaHostAlloc", [&] { return cudaHostAlloc(&memory, 64, 0); }, cudaErrorStreamCaptureUnsupported},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream.handle); },
       cudaErrorStreamCaptureUnsupported},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(stream.handle); }, cudaErrorStreamCaptureUnsupported},
      {"cudaDeviceSynchronize", [&] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported},
      {"cudaEventQuery", [&] { return cudaEventQuery(recorded.handle); }, cudaErrorStreamCaptureUnsupported},
      {"cudaMemcpy", [&] { return cudaMemcpy(value.address, pageable.data(), sizeof(int), cudaMemcpyDefault); },
       cudaErrorStreamCaptureUnsupported},
      {"a copy of pageable memory",
       [&] { return cudaMemcpyAsync(pageable.data(), value.address, sizeof(int), cudaMemcpyDefault, stream.handle); },
       cudaErrorStreamCaptureUnsupported},
      {"an event from outside", [&] { return cudaStreamWaitEvent(stream.handle, recorded.handle, 0); },
       cudaErrorStreamCaptureIsolation},
      {"a second capture", [&] { return cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal); },
       cudaErrorIllegalState},
  };
  for (const Case& each : cases) {
    INFO(each.name);
    REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(each.call() == each.error);
    cudaGraph_t graph{};
    const bool harmless = each.error == cudaErrorIllegalState;
    CHECK(cudaStreamEndCapture(stream.handle, &graph) == (harmless ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream.handle, nullptr) == cudaErrorIllegalState);
  cudaGetLastError();
}

TEST_CASE("another thread may allocate during a thread-local capture, and not during a global one") {
  const Stream stream;
  const bool global = GENERATE(true, false);
  REQUIRE(cudaStreamBeginCapture(
              stream.handle, global ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaError_t error = cudaErrorUnknown;
  void* memory = nullptr;
  std::thread([&] { error = cudaMalloc(&memory, 64); }).join();
  CHECK(error == (global ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
  cudaGraph_t graph{};
  CHECK(cudaStreamEndCapture(stream.handle, &graph) == (global ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
  if (graph) cudaGraphDestroy(graph);
  if (memory) CHECK(cudaFree(memory) == cudaSuccess);
  cudaGetLastError();
}

TEST_CASE("a capture ends in the stream and the thread that began it") {
  const Stream stream;
  cudaGraph_t graph{};
  REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaError_t error = cudaSuccess;
  std::thread([&] { error = cudaStreamEndCapture(stream.handle, &graph); }).join();
  CHECK(error == cudaErrorStreamCaptureWrongThread);
  CHECK(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
}

TEST_CASE("waits of the host are counted by kind, and idle ones separately") {
  const Stream stream;
  const Event event;
  DeviceInt value(0);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  simulated_cuda_reset_counts();
  enqueue_add(stream.handle, value.address, 1);
  REQUIRE(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
  CHECK(cudaEventSynchronize(event.handle) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  enqueue_add(stream.handle, value.address, 1);
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  enqueue_add(stream.handle, value.address, 1);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  int host = 0;
  REQUIRE(cudaMemcpyAsync(&host, value.address, sizeof host, cudaMemcpyDefault, stream.handle) == cudaSuccess);
  REQUIRE(cudaMemcpy(&host, value.address, sizeof host, cudaMemcpyDefault) == cudaSuccess);
  const SimulatedCudaCounts c = counts();
  CHECK(c.waits_event == 1);
  CHECK(c.waits_stream == 1);
  CHECK(c.waits_device == 1);
  CHECK(c.waits_pageable_copy == 1);
  CHECK(c.waits_copy == 1);
  CHECK(c.idle_waits == 1);
  CHECK(simulated_cuda_host_waits() == 5);
  CHECK(c.launches == 3);
  CHECK(c.copies_to_host == 2);
  CHECK(c.bytes_to_host == 2 * sizeof(int));
}

TEST_CASE("waiting for an event that was never recorded is reported") {
  const Stream stream;
  const Event event;
  const uint64_t before = counts().lints;
  CHECK(cudaStreamWaitEvent(stream.handle, event.handle, 0) == cudaSuccess);
  CHECK(cudaEventSynchronize(event.handle) == cudaSuccess);
  CHECK(counts().lints == before + 2);
}

TEST_CASE("times between events") {
  const Stream stream;
  const Event from(cudaEventDefault), to(cudaEventDefault), without_time;
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, from.handle, to.handle) == cudaErrorInvalidResourceHandle);
  REQUIRE(cudaEventRecord(from.handle, stream.handle) == cudaSuccess);
  REQUIRE(cudaEventRecord(to.handle, stream.handle) == cudaSuccess);
  REQUIRE(cudaEventRecord(without_time.handle, stream.handle) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&ms, from.handle, to.handle) == cudaSuccess);
  CHECK(ms >= 0);
  CHECK(cudaEventElapsedTime(&ms, from.handle, without_time.handle) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

// Last: nothing of the process's devices works afterwards.
TEST_CASE("zz: a kernel's assertion makes every later call fail") {
  const Stream stream;
  REQUIRE(simulated_cuda_enqueue(
              stream.handle, [](void*) { throw std::runtime_error("index out of range"); }, nullptr, nullptr, "asserts",
              0) == 0);
  CHECK(cudaStreamSynchronize(stream.handle) == cudaErrorAssert);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 64) == cudaErrorAssert);
  CHECK(cudaGetLastError() == cudaErrorAssert);
  CHECK(std::strcmp(cudaGetErrorString(cudaErrorAssert), "device-side assert triggered") == 0);
}

}  // namespace runtime_test
