#pragma once

#include <cstdint>

namespace fulgur::test {

/// Times that this process has waited for a CUDA device so far, on any thread: calls of cudaStreamSynchronize,
/// cudaDeviceSynchronize, cudaEventSynchronize and cudaMemcpy. Linking host_waits.cpp puts functions of these names
/// before those of the CUDA runtime, to which they pass on; LibTorch, which gets the runtime from a shared library,
/// calls them.
int64_t host_waits();
/// Of those, calls of cudaEventSynchronize.
int64_t event_waits();
/// Of those, calls of this thread.
int64_t host_waits_of_this_thread();
/// Calls of cudaEventSynchronize by other threads than the caller's begin only when it is called again with false, or
/// after two seconds. It keeps the writer of a checkpoint from waiting for its copies, which would have them made.
void hold_event_waits_of_others(bool hold);

}  // namespace fulgur::test
