#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fulgur/simulated_cuda/simulated_cuda.h"

/// The streams, and the time at which their work runs. One mutex guards the whole state of the runtime; the work itself
/// runs without it.
///
/// The rules are CUDA's: work of a stream runs in order; a wait of a stream refers to the event's last recording before
/// the wait was enqueued; the host waits in functions that synchronize. Everything else is up to the schedule:
///   - immediate: work runs in the call that enqueues it, unless the stream waits for something;
///   - late: work runs only when the host, or a running stream, waits for it;
///   - seeded: between the two.
/// Work that may wait for other processes runs on the stream's own thread and starts within kPatience in any schedule.
namespace simulated_cuda {

using Lock = std::unique_lock<std::mutex>;

struct Stream;
struct Capture;

/// One recording of an event: a position in a stream, or in a capture.
struct Recording {
  Stream* stream = nullptr;
  uint64_t sequence = 0;
  double time_ms = 0;  ///< when the stream reached it
  uint64_t capture = 0;
  std::map<Stream*, size_t> after;  ///< in a capture: how much of each stream's work precedes it
  std::map<Stream*, size_t> order;  ///< like `after`, except for waits that are deliberately broken
};

struct Work {
  enum class Kind { kernel, copy, fill, host_function, record, wait, graph };
  Kind kind = Kind::kernel;
  std::string name;
  std::function<void()> run = {};             ///< if empty, the work computes nothing
  std::shared_ptr<Recording> recording = {};  ///< for `record` and `wait`
  bool may_wait = false;
  std::vector<size_t> after = {};  ///< in a graph: the nodes it waits for, without those that they wait for
};

struct Event {
  unsigned flags = 0;
  int device = 0;
  std::shared_ptr<Recording> recording = {};
};

struct Graph {
  std::vector<Work> nodes;
  uint64_t launches = 0;
  std::shared_ptr<Recording> last = {};  ///< the end of the previous launch
};

struct Capture {
  uint64_t id = 0;
  std::unique_ptr<Graph> graph;
  cudaStreamCaptureMode mode{};
  pthread_t thread{};
  Stream* origin = nullptr;
  std::set<Stream*> streams;
  bool invalid = false;
};

struct Stream {
  int id = 0, device = 0, priority = 0;
  unsigned flags = 0;
  std::deque<Work> queue;
  uint64_t enqueued = 0, completed = 0;
  uint64_t wanted = 0;       ///< work up to here should run as soon as possible
  uint64_t may_wait_at = 0;  ///< the last queued work that may wait for others
  uint64_t waited = 0;       ///< the host has waited up to here
  bool running = false;      ///< a thread runs its work
  bool has_thread = false;
  std::condition_variable wake;
  Capture* capture = nullptr;
  std::map<Stream*, size_t> after, order;  ///< in a capture: as in a Recording
  size_t last_node = 0;
  bool legacy() const { return id == 0; }
  bool blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};

/// State of the runtime. It is never destroyed, since work may run until the process ends.
struct State {
  std::mutex mutex;
  std::condition_variable changed;  ///< a stream has completed work, or can run
  std::vector<std::unique_ptr<Stream>> streams;
  std::map<int, Stream*> legacy_streams;
  std::set<Stream*> live_streams;
  std::set<Event*> live_events;
  std::set<Graph*> live_graphs, live_executables;
  std::set<Capture*> captures;
  uint64_t next_capture = 1;
  uint64_t schedule = 0, random = 0;
  SimulatedCudaCounts counts{};
  cudaError_t failed = cudaSuccess;  ///< the devices' sticky error
  bool exiting = false;              ///< the process exits: the streams' threads run no more work
  bool ending = false;               ///< the process is ending: calls fail, as with CUDA
};
State& state();

struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  int kernels = SIMULATED_CUDA_KERNELS_ALONE;
  uint64_t refused_kernels = 0;
  bool in_host_function = false;
};
ThreadState& this_thread();

/// Prints to standard error if SIMULATED_CUDA_LOG is at least that level.
void say(int level, const char* format, ...) __attribute__((format(printf, 2, 3)));
/// Sets the thread's last error, counts it and returns it.
cudaError_t fail(cudaError_t error, const char* function, const char* why = "");

double now_ms();
/// The stream of a handle: the device's legacy stream for 0; nullptr if it was destroyed or never created.
Stream* find_stream(cudaStream_t handle);
Stream& legacy_stream(int device);

/// Enqueues the work, or records it if the stream is capturing.
cudaError_t submit(Lock& lock, Stream& stream, Work work, const char* function);
/// Runs the stream on this thread until `until` of it is done, including what it waits for.
void run_until(Lock& lock, Stream& stream, uint64_t until);
/// At the exit of the process, threads of streams end before what exists now is destroyed.
void end_threads_at_exit();
void run_all(Lock& lock);
/// All streams of a device.
void run_device(Lock& lock, int device);
/// A pseudo-random number below `bound`, the same on every machine. Advances `state`.
uint64_t random_below(uint64_t& state, uint64_t bound);
/// Runs one piece of the stream's work, if possible, so that a program that polls makes progress.
void run_a_little(Lock& lock, Stream& stream);
bool is_done(const Recording& recording);

/// Counts the host's wait for a stream (nullptr: for all) in `counter`, or in `idle_waits` if there was no work.
void count_wait(uint64_t& counter, const char* what, Stream* stream, uint64_t until = ~uint64_t{0});
void count_device_wait(uint64_t& counter, const char* what, int device);

/// Returns an error if this thread's kernels are refused; writes a log line if they compute nothing.
cudaError_t check_computes(const char* kernel, const char* function);

void invalidate(Capture& capture, const char* function);
/// `stream` captures from now on.
void join_capture(Capture& capture, Stream& stream);
/// Counts and logs a wait for an event that was never recorded, which does nothing.
cudaError_t wait_for_nothing(const char* function);
/// Returns an error if a capture forbids this call to this thread. The documentation of
/// cudaThreadExchangeStreamCaptureMode names such calls "unsafe".
cudaError_t check_unsafe(const char* function);

}  // namespace simulated_cuda

#define SIMULATED_API extern "C" __attribute__((visibility("default")))

/// Every function that accesses the state begins with this macro.
#define ENTER()                                                                                                       \
  ::simulated_cuda::Lock lock(::simulated_cuda::state().mutex);                                                       \
  if (::simulated_cuda::state().ending) return cudaErrorCudartUnloading;                                              \
  if (::simulated_cuda::this_thread().in_host_function)                                                               \
    return ::simulated_cuda::fail(cudaErrorNotPermitted, __func__, "a host function of a stream must not call CUDA"); \
  if (::simulated_cuda::state().failed != cudaSuccess)                                                                \
  return ::simulated_cuda::this_thread().last_error = ::simulated_cuda::state().failed
#define FIND_STREAM(name, handle)                                               \
  ::simulated_cuda::Stream* const name = ::simulated_cuda::find_stream(handle); \
  if (name == nullptr)                                                          \
  return ::simulated_cuda::fail(cudaErrorInvalidResourceHandle, __func__, "the stream was destroyed or never created")
#define FIND_EVENT(name, handle)                                         \
  auto* const name = reinterpret_cast<::simulated_cuda::Event*>(handle); \
  if (!::simulated_cuda::state().live_events.count(name))                \
  return ::simulated_cuda::fail(cudaErrorInvalidResourceHandle, __func__, "the event was destroyed or never created")
#define NOT_IN_CAPTURE() \
  if (const cudaError_t unsafe_error = ::simulated_cuda::check_unsafe(__func__)) return unsafe_error
