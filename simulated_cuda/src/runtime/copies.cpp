// Copies and fills. The kind of a copy follows from the source and target memory, as with cudaMemcpyDefault.
#include <cstdlib>
#include <cstring>

#include "engine.h"
#include "memory.h"
#include "settings.h"

using namespace simulated_cuda;

namespace {

struct End {
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = -1;
  bool on_device() const { return type == cudaMemoryTypeDevice; }
  bool pageable() const { return type == cudaMemoryTypeUnregistered; }
};

// False if the range extends beyond the allocation that it begins in.
bool look_up(const void* address, size_t bytes, End& end) {
  const void* start = nullptr;
  const Allocation* found = find_allocation(address, &start);
  if (!found) return true;
  end = {found->type, found->device};
  return static_cast<const char*>(address) + bytes <= static_cast<const char*>(start) + found->bytes;
}

void count(const End& to, const End& from, size_t bytes) {
  SimulatedCudaCounts& c = state().counts;
  if (to.on_device() && from.on_device()) {
    const bool between = to.device != from.device;
    ++(between ? c.copies_between_devices : c.copies_on_device);
    (between ? c.bytes_between_devices : c.bytes_on_device) += bytes;
  } else if (to.on_device()) {
    ++c.copies_to_device;
    c.bytes_to_device += bytes;
  } else {
    ++c.copies_to_host;
    c.bytes_to_host += bytes;
  }
}

cudaError_t copy(Lock& lock, void* to, const void* from, size_t bytes, Stream& stream, bool waits,
                 const char* function) {
  if (bytes == 0) return cudaSuccess;
  End target, source;
  if (!look_up(to, bytes, target) || !look_up(from, bytes, source))
    return fail(cudaErrorInvalidValue, function, "the range extends beyond its allocation");
  const bool pageable = (target.on_device() && source.pageable()) || (source.on_device() && target.pageable());
  if (stream.capture && pageable) {
    invalidate(*stream.capture, function);
    return fail(cudaErrorStreamCaptureUnsupported, function, "a copy of pageable memory");
  }
  if (waits)
    if (const cudaError_t error = check_unsafe(function)) return error;
  if (!stream.capture) count(target, source, bytes);
  Work work{.kind = Work::Kind::copy, .name = "copy"};
  if (pageable && target.on_device()) {
    // The data is staged before the call returns: the program may overwrite it immediately.
    const std::shared_ptr<void> staged(std::malloc(bytes), std::free);
    std::memcpy(staged.get(), from, bytes);
    work.run = [=] { std::memcpy(to, staged.get(), bytes); };
  } else {
    work.run = [=] { std::memmove(to, from, bytes); };
  }
  if (const cudaError_t error = submit(lock, stream, std::move(work), function)) return error;
  if (stream.capture || settings().break_sync) return cudaSuccess;
  const bool into_pageable = source.on_device() && target.pageable();
  // The host does not wait for a copy from device to device, not even in cudaMemcpy.
  if (source.on_device() && target.on_device()) waits = false;
  if (!waits && !into_pageable) return cudaSuccess;
  count_wait(waits ? state().counts.waits_copy : state().counts.waits_pageable_copy, function, &stream);
  run_until(lock, stream, stream.enqueued);
  return state().failed;
}

}  // namespace

SIMULATED_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  return copy(lock, to, from, bytes, *stream, false, __func__);
}

SIMULATED_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  ENTER();
  FIND_STREAM(stream, nullptr);
  return copy(lock, to, from, bytes, *stream, true, __func__);
}

SIMULATED_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  return copy(lock, to, from, bytes, *stream, false, __func__);
}

SIMULATED_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                            size_t width, size_t height, cudaMemcpyKind, cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  for (size_t row = 0; row < height; ++row)
    if (const cudaError_t error =
            copy(lock, static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                 width, *stream, false, __func__))
      return error;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  End target;
  if (bytes > 0 && (!look_up(to, bytes, target) || target.pageable()))
    return fail(cudaErrorInvalidValue, __func__, "there is no such memory");
  if (!stream->capture) ++state().counts.memsets;
  return submit(lock, *stream,
                Work{.kind = Work::Kind::fill, .name = "fill", .run = [=] { std::memset(to, value, bytes); }},
                __func__);
}

SIMULATED_API cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
