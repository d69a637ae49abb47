#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// What the scenarios of the probe program share. A check that fails ends the process with code 1.
namespace fulgur::test {

#define PROBE_CHECK(condition)                                                            \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                      \
    }                                                                                     \
  } while (false)

/// A rank of a run of several processes, which find each other through a file.
struct Rank {
  int rank = 0, world = 1;
  std::filesystem::path folder;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  /// Makes the communicator, on a device.
  ncclResult_t join(int device);
  void wait() const { PROBE_CHECK(cudaStreamSynchronize(stream) == cudaSuccess); }
  /// Writes a file, so that another process can see how far this one is.
  void mark(const std::string& name) const;
  void wait_for_mark(const std::string& name) const;
};

/// Memory of the device, read and written by the host when nothing uses it.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    PROBE_CHECK(cudaMalloc(&memory_, std::max<size_t>(count, 1) * sizeof(T)) == cudaSuccess);
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    PROBE_CHECK(cudaMemcpy(memory_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* get() const { return static_cast<T*>(memory_); }
  std::vector<T> values() const {
    std::vector<T> host(count_);
    PROBE_CHECK(cudaMemcpy(static_cast<void*>(host.data()), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost) ==
                cudaSuccess);
    return host;
  }

 private:
  size_t count_;
  void* memory_ = nullptr;
};

/// A host function that keeps its stream busy for a while.
void sleep_on_stream(void*);

void probe_collectives(Rank& rank);
void probe_large(Rank& rank);
void probe_premultiplied(Rank& rank);
void probe_half_in_float(Rank& rank);
void probe_group_orders(Rank& rank);
void probe_group_of_collectives(Rank& rank);
void probe_two_streams(Rank& rank);
void probe_split(Rank& rank);
void probe_shrink(Rank& rank);
void probe_one_process(Rank& rank);

}  // namespace fulgur::test
