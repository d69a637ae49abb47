#include "engine.h"

#include <execinfo.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "operators_library.h"
#include "settings.h"

namespace simulated_cuda {
namespace {

constexpr std::chrono::milliseconds kPatience{2};

void wake(Stream& stream) {
  stream.wake.notify_one();
  state().changed.notify_all();
}

// While `running` is set, the front belongs to the calling thread.
void run_front(Lock& lock, Stream& stream) {
  stream.running = true;
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.kind == Work::Kind::wait) {
    if (work.recording && !is_done(*work.recording)) run_until(lock, *work.recording->stream, work.recording->sequence);
  } else if (work.kind == Work::Kind::record) {
    work.recording->time_ms = now_ms();
  } else if (work.run) {
    lock.unlock();
    try {
      work.run();
    } catch (const std::exception& error) {
      simulated_cuda_fail_device(error.what());
    } catch (...) {
      simulated_cuda_fail_device(work.name.c_str());
    }
    work.run = nullptr;  // destructors of captured objects may call the runtime
    lock.lock();
  }
  ++stream.completed;
  stream.running = false;
}

void stream_thread(Stream* stream) {
  Lock lock(state().mutex);
  const auto has_more = [&] { return !stream->queue.empty() && !stream->running; };
  for (;;) {
    if (state().exiting) {
      stream->wake.wait(lock);
    } else if (has_more() && stream->completed < stream->wanted) {
      run_front(lock, *stream);
      state().changed.notify_all();
    } else if (has_more() && stream->completed < stream->may_wait_at) {
      // Another process may wait for this work, even if the host of this process does not.
      const uint64_t until = stream->may_wait_at;
      if (stream->wake.wait_for(lock, kPatience) == std::cv_status::timeout)
        stream->wanted = std::max(stream->wanted, until);
    } else {
      stream->wake.wait(lock);
    }
  }
}

// LibTorch's static objects are destroyed while the process exits, so no thread may run an operation then. A real
// device also discards the remaining work.
void stop_threads() {
  Lock lock(state().mutex);
  state().exiting = true;
  constexpr std::chrono::seconds kMost{5};  // an operation may wait for another process
  state().changed.wait_for(lock, kMost, [] {
    return std::none_of(state().streams.begin(), state().streams.end(),
                        [](const auto& stream) { return stream->running; });
  });
}

void give_thread(Stream& stream) {
  [[maybe_unused]] static const int registered = std::atexit(stop_threads);
  if (!std::exchange(stream.has_thread, true)) std::thread(stream_thread, &stream).detach();
  stream.wake.notify_one();
}

// Runs the work that can run without waiting for others, and leaves the rest to the stream's thread.
void run_now(Lock& lock, Stream& stream) {
  while (!stream.running && !stream.queue.empty()) {
    const Work& front = stream.queue.front();
    if (front.may_wait || (front.kind == Work::Kind::wait && front.recording && !is_done(*front.recording))) {
      give_thread(stream);
      return;
    }
    run_front(lock, stream);
    wake(stream);
  }
}

cudaError_t capture_work(Stream& stream, Work work, const char* function) {
  Capture& capture = *stream.capture;
  if (capture.invalid) return fail(cudaErrorStreamCaptureInvalidated, function);
  if (work.kind == Work::Kind::wait || work.kind == Work::Kind::record) return cudaSuccess;
  for (const auto& [other, place] : stream.order)
    if (place > 0) work.after.push_back(place - 1);
  capture.graph->nodes.push_back(std::move(work));
  stream.last_node = capture.graph->nodes.size();
  stream.after[&stream] = stream.order[&stream] = stream.last_node;
  return cudaSuccess;
}

void push(Stream& stream, Work work) {
  ++stream.enqueued;
  if (work.may_wait) stream.may_wait_at = stream.enqueued;
  if (work.kind == Work::Kind::record) work.recording->sequence = stream.enqueued;
  stream.queue.push_back(std::move(work));
}

// The legacy stream and blocking streams of its device wait for each other.
void order_with_legacy(Stream& stream) {
  if (!stream.blocking()) return;
  const auto wait_for = [&](Stream& other) {
    if (other.completed == other.enqueued) return;
    auto recording = std::make_shared<Recording>();
    recording->stream = &other;
    recording->sequence = other.enqueued;
    push(stream, Work{.kind = Work::Kind::wait, .name = "legacy stream", .recording = std::move(recording)});
  };
  if (!stream.legacy()) return wait_for(legacy_stream(stream.device));
  for (const auto& other : state().streams)
    if (other.get() != &stream && other->device == stream.device && other->blocking()) wait_for(*other);
}

// Returns whether there was work that the host had not yet waited for.
bool mark_waited(Stream& stream, uint64_t until) {
  const uint64_t place = std::min(until, stream.enqueued);
  return place > std::exchange(stream.waited, std::max(stream.waited, place));
}

void count(bool had_work, uint64_t& counter, const char* what) {
  if (!had_work) {
    ++state().counts.idle_waits;
    return;
  }
  ++counter;
  say(2, "the host waits: %s", what);
}

}  // namespace

// A linear congruential generator: the quality of the numbers does not matter.
uint64_t random_below(uint64_t& state, uint64_t bound) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (state >> 33) % bound;
}

State& state() {
  static State* const one = [] {
    auto* made = new State;
    made->schedule = made->random = settings().schedule;
    return made;
  }();
  return *one;
}

ThreadState& this_thread() {
  thread_local ThreadState one;
  return one;
}

void say(int level, const char* format, ...) {
  if (settings().log < level) return;
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[simulated CUDA] %s\n", line);
  if (!settings().backtrace) return;
  void* frames[24];
  const int count = ::backtrace(frames, 24);
  if (count > 2) backtrace_symbols_fd(frames + 2, count - 2, 2);
}

cudaError_t fail(cudaError_t error, const char* function, const char* why) {
  this_thread().last_error = error;
  if (error == cudaErrorNotReady) return error;
  ++state().counts.errors;
  say(1, "%s returns %s%s%s", function, cudaGetErrorName(error), *why ? ": " : "", why);
  return error;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Stream& legacy_stream(int device) {
  Stream*& stream = state().legacy_streams[device];
  if (!stream) {
    stream = state().streams.emplace_back(std::make_unique<Stream>()).get();
    stream->device = device;
  }
  return *stream;
}

Stream* find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return &legacy_stream(this_thread().device);
  auto* stream = reinterpret_cast<Stream*>(handle);
  return state().live_streams.count(stream) ? stream : nullptr;
}

bool is_done(const Recording& recording) {
  return recording.stream == nullptr || recording.stream->completed >= recording.sequence;
}

cudaError_t submit(Lock& lock, Stream& stream, Work work, const char* function) {
  if (stream.capture) return capture_work(stream, std::move(work), function);
  if (stream.legacy())
    for (Capture* capture : state().captures)
      if (capture->origin->blocking()) {
        invalidate(*capture, function);
        return fail(cudaErrorStreamCaptureImplicit, function,
                    "the legacy stream would wait for a stream that is capturing");
      }
  order_with_legacy(stream);
  push(stream, std::move(work));
  if (state().schedule == 0) {
    stream.wanted = stream.enqueued;
    if (stream.running)
      stream.wake.notify_one();
    else
      run_now(lock, stream);
    return cudaSuccess;
  }
  if (stream.may_wait_at > stream.completed) give_thread(stream);
  if (state().schedule > 1 && random_below(state().random, 3) == 0)
    for (uint64_t steps = random_below(state().random, 4) + 1; steps > 0; --steps)
      run_a_little(lock, *state().streams[random_below(state().random, state().streams.size())]);
  return cudaSuccess;
}

void end_threads_at_exit() { std::atexit(stop_threads); }

void run_until(Lock& lock, Stream& stream, uint64_t until) {
  stream.wanted = std::max(stream.wanted, until);
  while (stream.completed < until) {
    if (stream.running || stream.queue.empty()) {
      state().changed.wait(lock);
      continue;
    }
    run_front(lock, stream);
    wake(stream);
  }
}

void run_all(Lock& lock) {
  // Streams may be added while the loop runs.
  for (size_t i = 0; i < state().streams.size(); ++i)
    run_until(lock, *state().streams[i], state().streams[i]->enqueued);
}

void run_device(Lock& lock, int device) {
  for (size_t i = 0; i < state().streams.size(); ++i)
    if (state().streams[i]->device == device) run_until(lock, *state().streams[i], state().streams[i]->enqueued);
}

void run_a_little(Lock& lock, Stream& stream) {
  if (stream.running || stream.queue.empty()) return;
  const Work& front = stream.queue.front();
  if (front.may_wait) {
    stream.wanted = std::max(stream.wanted, stream.completed + 1);
    give_thread(stream);
    return;
  }
  if (front.kind == Work::Kind::wait && front.recording && !is_done(*front.recording))
    return run_a_little(lock, *front.recording->stream);
  run_front(lock, stream);
  wake(stream);
}

void count_wait(uint64_t& counter, const char* what, Stream* stream, uint64_t until) {
  bool had_work = false;
  for (const auto& each : state().streams)
    if (!stream || each.get() == stream) had_work |= mark_waited(*each, until);
  count(had_work, counter, what);
}

void count_device_wait(uint64_t& counter, const char* what, int device) {
  bool had_work = false;
  for (const auto& each : state().streams)
    if (each->device == device) had_work |= mark_waited(*each, each->enqueued);
  count(had_work, counter, what);
}

cudaError_t check_computes(const char* kernel, const char* function) {
  ThreadState& thread = this_thread();
  if (thread.kernels == SIMULATED_CUDA_KERNELS_WITH_NUMBERS) return cudaSuccess;
  if (thread.kernels == SIMULATED_CUDA_KERNELS_REFUSED) {
    ++thread.refused_kernels;
    return fail(cudaErrorNotSupported, function, "the kernel would compute nothing on simulated CUDA");
  }
  // Without the operators' library no kernel computes anything, so there is nothing to report.
  static auto* const said = new std::set<std::string>;
  if (operators_are_loaded() && said->insert(kernel).second) {
    ++state().counts.lints;
    say(1, "kernel %s is not part of a LibTorch operation and computes nothing", kernel);
  }
  return cudaSuccess;
}

void invalidate(Capture& capture, const char* function) {
  if (capture.invalid) return;
  capture.invalid = true;
  say(1, "capture %llu is invalid: %s was called", static_cast<unsigned long long>(capture.id), function);
}

void join_capture(Capture& capture, Stream& stream) {
  stream.capture = &capture;
  capture.streams.insert(&stream);
  stream.after.clear();
  stream.order.clear();
  stream.last_node = 0;
}

cudaError_t wait_for_nothing(const char* function) {
  ++state().counts.lints;
  say(1, "%s waits for an event that was never recorded, which does nothing", function);
  return cudaSuccess;
}

cudaError_t check_unsafe(const char* function) {
  const cudaStreamCaptureMode mine = this_thread().capture_mode;
  if (mine == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (Capture* capture : state().captures) {
    const bool by_this_thread = pthread_equal(capture->thread, pthread_self()) != 0;
    const bool global = capture->mode == cudaStreamCaptureModeGlobal && mine == cudaStreamCaptureModeGlobal;
    if (!global && !(by_this_thread && capture->mode != cudaStreamCaptureModeRelaxed)) continue;
    invalidate(*capture, function);
    return fail(cudaErrorStreamCaptureUnsupported, function, "the call is not permitted while a stream is capturing");
  }
  return cudaSuccess;
}

}  // namespace simulated_cuda
