#include <algorithm>

#include "engine.h"
#include "settings.h"

using namespace simulated_cuda;

namespace {

// For calls that are not allowed on a capturing stream in any mode.
cudaError_t refuse_capturing(Stream& stream, const char* function) {
  if (!stream.capture) return cudaSuccess;
  invalidate(*stream.capture, function);
  return fail(cudaErrorStreamCaptureUnsupported, function);
}

struct InHostFunction {
  InHostFunction() { this_thread().in_host_function = true; }
  ~InHostFunction() { this_thread().in_host_function = false; }
  InHostFunction(const InHostFunction&) = delete;
  InHostFunction& operator=(const InHostFunction&) = delete;
};

}  // namespace

SIMULATED_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  ENTER();
  Stream& stream = *state().streams.emplace_back(std::make_unique<Stream>());
  stream.id = static_cast<int>(state().streams.size());
  stream.device = this_thread().device;
  stream.priority = priority;
  stream.flags = flags;
  state().live_streams.insert(&stream);
  *handle = reinterpret_cast<cudaStream_t>(&stream);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
SIMULATED_API cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

// The stream's work still runs, and the host does not wait for it. The object is kept, since recordings may refer to
// it.
SIMULATED_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  ENTER();
  if (handle == nullptr) return fail(cudaErrorInvalidResourceHandle, __func__);
  FIND_STREAM(stream, handle);
  if (stream->capture) invalidate(*stream->capture, __func__);
  state().live_streams.erase(stream);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  ENTER();
  FIND_STREAM(stream, handle);
  *priority = stream->priority;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  ENTER();
  FIND_STREAM(stream, handle);
  *flags = stream->flags;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  ENTER();
  FIND_STREAM(stream, handle);
  *device = stream->device;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  ENTER();
  FIND_STREAM(stream, handle);
  *id = static_cast<unsigned long long>(stream->id);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (const cudaError_t error = refuse_capturing(*stream, __func__)) return error;
  NOT_IN_CAPTURE();
  if (settings().break_sync) return cudaSuccess;
  count_wait(state().counts.waits_stream, __func__, stream);
  run_until(lock, *stream, stream->enqueued);
  return state().failed;
}

SIMULATED_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (const cudaError_t error = refuse_capturing(*stream, __func__)) return error;
  NOT_IN_CAPTURE();
  const bool idle = stream->completed == stream->enqueued;
  if (!idle) run_a_little(lock, *stream);
  return idle ? cudaSuccess : fail(cudaErrorNotReady, __func__);
}

SIMULATED_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  ENTER();
  FIND_STREAM(stream, handle);
  FIND_EVENT(event, event_handle);
  ++state().counts.stream_waits;
  if (!event->recording) return wait_for_nothing(__func__);
  const std::shared_ptr<Recording> recording = event->recording;
  if (recording->capture == 0) {
    if (stream->capture) {
      invalidate(*stream->capture, __func__);
      return fail(cudaErrorStreamCaptureIsolation, __func__, "the event was recorded outside the capture");
    }
    if (settings().break_wait) return cudaSuccess;
    return submit(lock, *stream, Work{.kind = Work::Kind::wait, .name = "wait", .recording = recording}, __func__);
  }
  // The wait adds this stream to the capture of the event.
  Capture* capture = nullptr;
  for (Capture* each : state().captures)
    if (each->id == recording->capture) capture = each;
  if (!capture) return fail(cudaErrorCapturedEvent, __func__, "the event was recorded in a capture that has ended");
  if (stream->capture && stream->capture != capture) {
    invalidate(*capture, __func__);
    return fail(cudaErrorStreamCaptureMerge, __func__);
  }
  if (!stream->capture) {
    if (stream->legacy()) {
      invalidate(*capture, __func__);
      return fail(cudaErrorStreamCaptureImplicit, __func__);
    }
    join_capture(*capture, *stream);
  }
  const auto join = [](std::map<Stream*, size_t>& mine, const std::map<Stream*, size_t>& other) {
    for (const auto& [each, place] : other) mine[each] = std::max(mine[each], place);
  };
  join(stream->after, recording->after);
  if (!settings().break_wait) join(stream->order, recording->order);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (!stream->capture) ++state().counts.host_functions;
  return submit(lock, *stream,
                Work{.kind = Work::Kind::host_function,
                     .name = "host function",
                     .run =
                         [=] {
                           const InHostFunction in;
                           function(argument);
                         },
                     .may_wait = true},
                __func__);
}

SIMULATED_API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* argument,
                                                unsigned) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (const cudaError_t error = refuse_capturing(*stream, __func__)) return error;
  ++state().counts.host_functions;
  return submit(lock, *stream,
                Work{.kind = Work::Kind::host_function,
                     .name = "callback",
                     .run =
                         [=] {
                           const InHostFunction in;
                           function(handle, cudaSuccess, argument);
                         },
                     .may_wait = true},
                __func__);
}
