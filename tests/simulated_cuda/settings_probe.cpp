// Shows what a setting of simulated CUDA does: settings come from the environment of a process, so the tests of their
// effects start this program.
//   settings_probe devices         how many there are, and the machine's place of each
//   settings_probe memory BYTES    what memory from cudaMalloc holds
//   settings_probe error           a call that fails, for the log
//   settings_probe graph           a captured graph of two streams, one of which waits for the other
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "fulgur/simulated_cuda/simulated_cuda.h"

namespace {

int print_devices() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count))
    return std::printf("no devices: %s\n", cudaGetErrorName(error)), 0;
  std::printf("devices %d:", count);
  for (int device = 0; device < count; ++device) {
    char place[16];
    if (cudaDeviceGetPCIBusId(place, sizeof place, device) != cudaSuccess) return 1;
    std::printf(" %s", place);
  }
  std::printf(", device %d %s\n", count, cudaSetDevice(count) == cudaErrorInvalidDevice ? "is refused" : "is there");
  return 0;
}

int print_memory(size_t bytes) {
  unsigned char* memory = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&memory), bytes) != cudaSuccess) return 1;
  const auto other = std::find_if(memory, memory + bytes, [&](unsigned char byte) { return byte != memory[0]; });
  std::printf("%zu bytes 0x%02x\n", static_cast<size_t>(other - memory), memory[0]);
  return 0;
}

int print_graph() {
  static int source = 0, target = 0;
  cudaStream_t first{}, second{};
  cudaEvent_t written{}, join{};
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  bool good = cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess &&
              cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess &&
              cudaEventCreate(&written) == cudaSuccess && cudaEventCreate(&join) == cudaSuccess &&
              cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
  good = good &&
         simulated_cuda_enqueue(
             first, [](void*) { source = 7; }, nullptr, nullptr, "write", 0) == 0 &&
         cudaEventRecord(written, first) == cudaSuccess && cudaStreamWaitEvent(second, written, 0) == cudaSuccess &&
         simulated_cuda_enqueue(
             second, [](void*) { target = source; }, nullptr, nullptr, "read", 0) == 0 &&
         cudaEventRecord(join, second) == cudaSuccess && cudaStreamWaitEvent(first, join, 0) == cudaSuccess;
  good = good && cudaStreamEndCapture(first, &graph) == cudaSuccess &&
         cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess &&
         cudaGraphLaunch(executable, first) == cudaSuccess && cudaStreamSynchronize(first) == cudaSuccess;
  return good ? std::printf("the second stream reads %d\n", target), 0 : 1;
}

}  // namespace

// Exported and not inlined, so that its name is in a stack.
extern "C" __attribute__((visibility("default"), noinline)) int settings_probe_frees_what_is_not_there() {
  int local = 0;
  const cudaError_t error = cudaFree(&local);
  std::printf("%s\n", cudaGetErrorName(error));
  return error == cudaErrorInvalidValue ? 0 : 1;
}

namespace {

std::atomic<int> ran = 0;

// As the destructor of a static object of LibTorch, which is registered before any stream has a thread.
void count_while_exiting() {
  const int before = ran;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::printf("%d host functions ran while the process exited, %s before\n", ran - before,
              before > 0 ? "some" : "none");
}

int exit_in_the_middle() {
  std::atexit(count_while_exiting);
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  const auto function = [](void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++ran;
  };
  for (int i = 0; i < 1000; ++i) cudaLaunchHostFunc(stream, function, nullptr);
  while (ran == 0) std::this_thread::yield();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const what = argc > 1 ? argv[1] : "";
  if (std::strcmp(what, "devices") == 0) return print_devices();
  if (std::strcmp(what, "memory") == 0 && argc > 2) return print_memory(std::strtoull(argv[2], nullptr, 10));
  if (std::strcmp(what, "error") == 0) return settings_probe_frees_what_is_not_there();
  if (std::strcmp(what, "graph") == 0) return print_graph();
  if (std::strcmp(what, "exit") == 0) return exit_in_the_middle();
  std::fprintf(stderr, "usage: settings_probe devices | memory BYTES | error | graph | exit\n");
  return 2;
}
