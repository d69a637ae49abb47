// Shows what a setting of simulated CUDA does: settings come from the environment of a process, so the tests of their
// effects start this program.
//   settings_probe devices         how many there are, and the machine's place of each
//   settings_probe memory BYTES    what memory from cudaMalloc holds
//   settings_probe error           a call that fails, for the log
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

}  // namespace

// Exported and not inlined, so that its name is in a stack.
extern "C" __attribute__((visibility("default"), noinline)) int settings_probe_frees_what_is_not_there() {
  int local = 0;
  const cudaError_t error = cudaFree(&local);
  std::printf("%s\n", cudaGetErrorName(error));
  return error == cudaErrorInvalidValue ? 0 : 1;
}

int main(int argc, char** argv) {
  const char* const what = argc > 1 ? argv[1] : "";
  if (std::strcmp(what, "devices") == 0) return print_devices();
  if (std::strcmp(what, "memory") == 0 && argc > 2) return print_memory(std::strtoull(argv[2], nullptr, 10));
  if (std::strcmp(what, "error") == 0) return settings_probe_frees_what_is_not_there();
  std::fprintf(stderr, "usage: settings_probe devices | memory BYTES | error\n");
  return 2;
}
