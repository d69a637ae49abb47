/// Extensions of the simulated CUDA runtime for programs: counters, and custom work on a stream. They are plain C, so
/// that Python's ctypes can call them. The functions exist only in the simulated libcudart.so.13.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Counts since the start of the process or the last `simulated_cuda_reset_counts`. Counts of existing objects
/// (`*_live`) are never reset.
struct SimulatedCudaCounts {
  uint64_t launches;          ///< kernels, also those in libraries (cuBLAS, cuDNN), but not those that a graph runs
  uint64_t library_launches;  ///< of `launches`, those inside libraries
  uint64_t graph_launches;
  uint64_t graph_nodes;  ///< kernels, copies and fills that graph launches ran
  uint64_t host_functions;
  uint64_t memsets;
  uint64_t copies_to_device, copies_to_host, copies_on_device, copies_between_devices;
  uint64_t bytes_to_device, bytes_to_host, bytes_on_device, bytes_between_devices;
  /// The host's waits for a device that had work, by kind.
  uint64_t waits_stream, waits_device, waits_event, waits_copy, waits_pageable_copy, waits_free;
  uint64_t idle_waits;                                ///< calls that would wait, but had nothing to wait for
  uint64_t mallocs, frees, host_mallocs, host_frees;  ///< calls of the runtime; LibTorch's allocators reuse memory
  uint64_t event_records, stream_waits;
  uint64_t errors;  ///< calls that returned an error (except cudaErrorNotReady)
  uint64_t lints;   ///< calls that CUDA accepts but that have no effect, such as waits for unrecorded events
  uint64_t device_bytes_live, device_bytes_peak, streams_live, events_live, graphs_live;
};

void simulated_cuda_counts(struct SimulatedCudaCounts* counts);
void simulated_cuda_reset_counts(void);
/// The sum of all `waits_*`.
uint64_t simulated_cuda_host_waits(void);

/// The work waits for another process, another stream or the host: it runs on the stream's own thread, and starts
/// within a bounded time in every schedule, like a kernel.
#define SIMULATED_CUDA_MAY_WAIT 1u
/// The work computes the results of a kernel whose launch was already counted.
#define SIMULATED_CUDA_NOT_COUNTED 2u

/// Enqueues `run(argument)` on a stream: like a kernel, it is recorded while the stream captures and runs at each
/// launch of the graph. `destroy(argument)` is called when the work can no longer run. Returns a cudaError_t.
int simulated_cuda_enqueue(cudaStream_t stream, void (*run)(void*), void* argument, void (*destroy)(void*),
                           const char* name, unsigned flags);
int simulated_cuda_is_capturing(cudaStream_t stream);
/// True if work that is enqueued now does not run in the call: the schedule defers it, the stream is capturing, or the
/// stream has work that waits.
int simulated_cuda_runs_later(cudaStream_t stream);
/// Sets when work runs, for tests: 0 immediately, 1 as late as stream order and the host's waits allow, N > 1 in
/// between, with seed N. Waits for all devices first. SIMULATED_CUDA_SCHEDULE (`immediate`, `late`, a seed) sets the
/// initial value.
void simulated_cuda_set_schedule(uint64_t schedule);
/// Simulates a kernel assertion: every later call of this process fails with cudaErrorAssert, as on a GPU.
/// `why` is printed to standard error.
void simulated_cuda_fail_device(const char* why);
/// Launches a library's kernel, which computes nothing but is counted. Called by the stand-ins of cuBLAS and others.
void simulated_cuda_library_launch(cudaStream_t stream, const char* name);
/// What is computed by the kernels that this thread launches from now on. Set by the operators' library.
enum SimulatedCudaKernels {
  SIMULATED_CUDA_KERNELS_ALONE,         ///< nothing; logged once per kernel
  SIMULATED_CUDA_KERNELS_WITH_NUMBERS,  ///< nothing; the results of their operation are enqueued on the stream
  SIMULATED_CUDA_KERNELS_REFUSED        ///< nothing, so a launch is an error: cudaErrorNotSupported
};
/// Returns the previous value.
int simulated_cuda_set_kernels(int kernels);
/// Number of this thread's launches that were refused.
uint64_t simulated_cuda_refused_kernels(void);
/// Reports a call of a library function that computes something; SIMULATED_CUDA_KERNELS_REFUSED refuses such calls.
/// Returns a cudaError_t.
int simulated_cuda_library_computes(const char* function);
/// Reports that a function of the runtime or the driver is not simulated; returns cudaErrorNotSupported.
int simulated_cuda_unsupported(const char* function);

#ifdef __cplusplus
}
#endif
