#pragma once

#include <functional>

#include "fulgur/core/export.h"

namespace fulgur {

/// A device's work, recorded once and launched again and again as one (a CUDA graph). Used by one thread.
class FULGUR_API GraphCapture {
 public:
  virtual ~GraphCapture();
  /// Runs `body` on the host; what it launches on the device is recorded, not done. Rethrows what `body` throws, and throws an
  /// Error where the device cannot record it; the device is then as if nothing had been recorded.
  virtual void record(const std::function<void()>& body) = 0;
  /// Launches what was recorded, on the current stream; does not wait for it.
  virtual void replay() = 0;
};

}  // namespace fulgur
