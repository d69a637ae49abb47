#include <utility>

#include "engine.h"
#include "settings.h"

using namespace simulated_cuda;

namespace {

// An event recorded in a capture has no time that the host could query.
cudaError_t refuse_captured(const Event& event, const char* function) {
  if (!event.recording || event.recording->capture == 0) return cudaSuccess;
  for (Capture* capture : state().captures)
    if (capture->id == event.recording->capture) invalidate(*capture, function);
  return fail(cudaErrorCapturedEvent, function);
}

}  // namespace

SIMULATED_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  ENTER();
  auto* const event = new Event{.flags = flags, .device = this_thread().device};
  state().live_events.insert(event);
  *handle = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

SIMULATED_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  ENTER();
  FIND_EVENT(event, handle);
  state().live_events.erase(event);
  delete event;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
  ENTER();
  FIND_EVENT(event, handle);
  FIND_STREAM(stream, stream_handle);
  if (event->device != stream->device)
    return fail(cudaErrorInvalidResourceHandle, __func__, "the event and the stream are on different devices");
  ++state().counts.event_records;
  auto recording = std::make_shared<Recording>();
  recording->stream = stream;
  if (stream->capture) {
    if (stream->capture->invalid) return fail(cudaErrorStreamCaptureInvalidated, __func__);
    recording->capture = stream->capture->id;
    recording->after = stream->after;
    recording->order = stream->order;
    event->recording = std::move(recording);
    return cudaSuccess;
  }
  event->recording = recording;
  return submit(lock, *stream, Work{.kind = Work::Kind::record, .name = "record", .recording = std::move(recording)},
                __func__);
}

SIMULATED_API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return cudaEventRecordWithFlags(handle, stream, 0);
}

SIMULATED_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  ENTER();
  FIND_EVENT(event, handle);
  if (const cudaError_t error = refuse_captured(*event, __func__)) return error;
  NOT_IN_CAPTURE();
  if (!event->recording || is_done(*event->recording) || settings().break_query) return cudaSuccess;
  const std::shared_ptr<Recording> recording = event->recording;
  run_a_little(lock, *recording->stream);
  return is_done(*recording) ? cudaSuccess : fail(cudaErrorNotReady, __func__);
}

SIMULATED_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  ENTER();
  FIND_EVENT(event, handle);
  if (const cudaError_t error = refuse_captured(*event, __func__)) return error;
  NOT_IN_CAPTURE();
  if (!event->recording) return wait_for_nothing(__func__);
  if (settings().break_sync) return cudaSuccess;
  const std::shared_ptr<Recording> recording = event->recording;
  count_wait(state().counts.waits_event, __func__, recording->stream, recording->sequence);
  run_until(lock, *recording->stream, recording->sequence);
  return state().failed;
}

SIMULATED_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from_handle, cudaEvent_t to_handle) {
  ENTER();
  FIND_EVENT(from, from_handle);
  FIND_EVENT(to, to_handle);
  if (!from->recording || !to->recording || ((from->flags | to->flags) & cudaEventDisableTiming) != 0)
    return fail(cudaErrorInvalidResourceHandle, __func__, "one of the events was never recorded, or has no time");
  if (!is_done(*from->recording) || !is_done(*to->recording)) return fail(cudaErrorNotReady, __func__);
  *ms = static_cast<float>(to->recording->time_ms - from->recording->time_ms);
  return cudaSuccess;
}
