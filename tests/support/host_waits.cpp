#include "host_waits.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <initializer_list>
#include <mutex>
#include <thread>

// Public, so that the dynamic linker finds them before the runtime's own; no header of CUDA, so that this builds
// everywhere.
#define FULGUR_BEFORE_RUNTIME extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<int64_t> waits{0}, waits_for_events{0};
thread_local int64_t waits_of_thread = 0;
uint64_t held = 0;  // odd: now. Counted up, so that who waits also sees an end that is followed by a beginning
std::thread::id holder;
std::mutex hold_mutex;
std::condition_variable released;
constexpr int kNoRuntime = 35;  // cudaErrorInsufficientDriver

void* runtime_function(const char* name) {
  if (void* next = dlsym(RTLD_NEXT, name)) return next;
  // A program that loads LibTorch for itself (Python) has the runtime in a place that RTLD_NEXT does not search.
  for (const char* library : {"libcudart.so.13", "libcudart.so.12"})
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD))
      if (void* found = dlsym(handle, name)) return found;
  return nullptr;
}

template <class... Values>
int pass_on(void* function, Values... values) {
  ++waits;
  ++waits_of_thread;
  return function ? reinterpret_cast<int (*)(Values...)>(function)(values...) : kNoRuntime;
}

}  // namespace

FULGUR_BEFORE_RUNTIME int cudaStreamSynchronize(void* stream) {
  static void* const next = runtime_function("cudaStreamSynchronize");
  return pass_on(next, stream);
}

FULGUR_BEFORE_RUNTIME int cudaDeviceSynchronize() {
  static void* const next = runtime_function("cudaDeviceSynchronize");
  return pass_on(next);
}

FULGUR_BEFORE_RUNTIME int cudaEventSynchronize(void* event) {
  static void* const next = runtime_function("cudaEventSynchronize");
  ++waits_for_events;
  {
    std::unique_lock lock(hold_mutex);
    const uint64_t now = held;
    if (now % 2 == 1 && holder != std::this_thread::get_id())
      released.wait_for(lock, std::chrono::seconds(2), [&] { return held != now; });
  }
  return pass_on(next, event);
}

FULGUR_BEFORE_RUNTIME int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  static void* const next = runtime_function("cudaMemcpy");
  return pass_on(next, to, from, bytes, kind);
}

FULGUR_BEFORE_RUNTIME int64_t fulgur_host_waits() { return waits; }

namespace fulgur::test {

int64_t host_waits() { return waits; }
int64_t event_waits() { return waits_for_events; }
int64_t host_waits_of_this_thread() { return waits_of_thread; }

void hold_event_waits_of_others(bool hold) {
  const std::lock_guard lock(hold_mutex);
  holder = std::this_thread::get_id();
  if (held % 2 != (hold ? 1 : 0)) ++held;
  released.notify_all();
}

}  // namespace fulgur::test
