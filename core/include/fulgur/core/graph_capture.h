#pragma once

#include <functional>
#include <memory>

#include "fulgur/core/export.h"

namespace fulgur {

/// A device's work, recorded once and launched again and again as one (a CUDA graph). Used by one thread.
class FULGUR_API GraphCapture {
 public:
  virtual ~GraphCapture();
  /// Makes the stream that records the current one until the returned object goes: it waits for the work so far, and
  /// what follows waits for it. For the steps before a recording, whose workspaces and gradient accumulators then
  /// belong to that stream.
  virtual std::shared_ptr<void> enter_stream() { return nullptr; }
  /// Runs `body` on the host; what it launches on the device is recorded, not done. What was recorded before is freed
  /// first. Rethrows what `body` throws, and throws an Error where the device cannot record it; the device is then as
  /// if nothing had been recorded.
  virtual void record(const std::function<void()>& body) = 0;
  /// Launches what was recorded, on the current stream; does not wait for it.
  virtual void replay() = 0;
  /// Frees what was recorded, with its memory.
  virtual void forget() {}
  /// A recorder for other work of the same device, on the same stream. Its recording may lie in memory that this one's
  /// uses only while it runs, so neither is launched while the other is under way; what a recording leaves behind stays
  /// its own for as long as a tensor holds it.
  virtual std::unique_ptr<GraphCapture> another() = 0;
};

}  // namespace fulgur
