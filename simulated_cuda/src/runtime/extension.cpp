// The functions declared in simulated_cuda.h.
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "engine.h"
#include "settings.h"

using namespace simulated_cuda;

SIMULATED_API void simulated_cuda_counts(SimulatedCudaCounts* counts) {
  const Lock lock(state().mutex);
  *counts = state().counts;
  counts->streams_live = state().live_streams.size();
  counts->events_live = state().live_events.size();
  counts->graphs_live = state().live_executables.size();
}

SIMULATED_API void simulated_cuda_reset_counts() {
  const Lock lock(state().mutex);
  SimulatedCudaCounts fresh{};
  fresh.device_bytes_live = fresh.device_bytes_peak = state().counts.device_bytes_live;
  state().counts = fresh;
}

SIMULATED_API uint64_t simulated_cuda_host_waits() {
  const Lock lock(state().mutex);
  const SimulatedCudaCounts& c = state().counts;
  return c.waits_stream + c.waits_device + c.waits_event + c.waits_copy + c.waits_pageable_copy + c.waits_free;
}

SIMULATED_API int simulated_cuda_enqueue(cudaStream_t handle, void (*run)(void*), void* argument,
                                         void (*destroy)(void*), const char* name, unsigned flags) {
  const std::shared_ptr<void> held(argument, [destroy](void* value) {
    if (destroy) destroy(value);
  });
  ENTER();
  FIND_STREAM(stream, handle);
  if (!stream->capture && (flags & SIMULATED_CUDA_NOT_COUNTED) == 0) ++state().counts.launches;
  return submit(lock, *stream,
                Work{.kind = Work::Kind::kernel,
                     .name = name,
                     .run = [run, held] { run(held.get()); },
                     .may_wait = (flags & SIMULATED_CUDA_MAY_WAIT) != 0},
                __func__);
}

SIMULATED_API int simulated_cuda_is_capturing(cudaStream_t handle) {
  const Lock lock(state().mutex);
  const Stream* stream = find_stream(handle);
  return stream && stream->capture ? 1 : 0;
}

SIMULATED_API int simulated_cuda_runs_later(cudaStream_t handle) {
  const Lock lock(state().mutex);
  const Stream* stream = find_stream(handle);
  return state().schedule != 0 || (stream && (stream->capture || stream->completed < stream->enqueued)) ? 1 : 0;
}

SIMULATED_API void simulated_cuda_set_schedule(uint64_t schedule) {
  Lock lock(state().mutex);
  run_all(lock);
  state().schedule = state().random = schedule;
}

SIMULATED_API void simulated_cuda_fail_device(const char* why) {
  const Lock lock(state().mutex);
  if (state().failed == cudaSuccess) std::fprintf(stderr, "[simulated CUDA] device-side assertion: %s\n", why);
  state().failed = cudaErrorAssert;
}

SIMULATED_API void simulated_cuda_library_launch(cudaStream_t handle, const char* name) {
  Lock lock(state().mutex);
  Stream* const stream = find_stream(handle);
  if (!stream || state().ending || check_computes(name, name)) return;
  if (!stream->capture) {
    ++state().counts.launches;
    ++state().counts.library_launches;
  }
  submit(lock, *stream, Work{.kind = Work::Kind::kernel, .name = name}, name);
}

SIMULATED_API int simulated_cuda_set_kernels(int kernels) { return std::exchange(this_thread().kernels, kernels); }

SIMULATED_API uint64_t simulated_cuda_refused_kernels() { return this_thread().refused_kernels; }

SIMULATED_API int simulated_cuda_library_computes(const char* function) {
  ENTER();
  return check_computes(function, function);
}

SIMULATED_API int simulated_cuda_unsupported(const char* function) {
  const Lock lock(state().mutex);
  return fail(cudaErrorNotSupported, function, "not simulated");
}

// Called at the end of the process. From then on calls fail, as with CUDA.
__attribute__((destructor)) static void end() {
  SimulatedCudaCounts c{};
  simulated_cuda_counts(&c);
  {
    const Lock lock(state().mutex);
    state().ending = true;
  }
  if (!settings().print_counts || c.mallocs + c.launches == 0) return;
  std::fprintf(stderr,
               "[simulated CUDA] launches %" PRIu64 " (%" PRIu64 " in libraries), graph launches %" PRIu64 " (%" PRIu64
               " nodes), fills %" PRIu64 "; copies to the device %" PRIu64 ", to the host %" PRIu64
               ", on a device %" PRIu64 ", between devices %" PRIu64 "; waits of the host: stream %" PRIu64
               ", device %" PRIu64 ", event %" PRIu64 ", copy %" PRIu64 ", pageable copy %" PRIu64 ", free %" PRIu64
               "; cudaMalloc %" PRIu64 ", cudaHostAlloc %" PRIu64 "; errors %" PRIu64 ", lints %" PRIu64 "\n",
               c.launches, c.library_launches, c.graph_launches, c.graph_nodes, c.memsets, c.copies_to_device,
               c.copies_to_host, c.copies_on_device, c.copies_between_devices, c.waits_stream, c.waits_device,
               c.waits_event, c.waits_copy, c.waits_pageable_copy, c.waits_free, c.mallocs, c.host_mallocs, c.errors,
               c.lints);
}
