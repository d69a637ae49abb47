#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// Work of a device, recorded once and launched repeatedly as one unit (a CUDA graph, or a program on the CPU). Used by
/// one thread.
class FULGUR_API GraphCapture {
 public:
  virtual ~GraphCapture();
  /// Makes the recording stream current until the returned object is destroyed: it waits for previous work, and later
  /// work waits for it. Use it for the steps before a recording, so that their workspaces and gradient accumulators
  /// belong to that stream.
  virtual std::shared_ptr<void> enter_stream() { return nullptr; }
  /// Runs `body` on the host; what it launches on the device is recorded, not executed. The previous recording is freed
  /// first. Rethrows what `body` throws, and throws an Error if the device cannot record it; the device is then as if
  /// nothing had been recorded.
  virtual void record(const std::function<void()>& body) = 0;
  /// Launches the recording on the current stream; does not wait for it.
  virtual void replay() = 0;
  /// Frees the recording and its memory.
  virtual void forget() {}
  /// A recorder for other work of the same device, on the same stream. Both recordings may share memory that is used
  /// only while they run, so neither may be launched while the other is running; the outputs of a recording stay valid
  /// as long as a tensor holds them.
  virtual std::unique_ptr<GraphCapture> another() = 0;
  /// Whether `record` may be called again for a later step of the same kind, without `forget`: it then compares the
  /// step with the recording, throws an Error that names the first difference, and replaces the recording if there is
  /// none.
  virtual bool compares_recordings() const { return false; }
  /// `place` describes the part of the step that runs now, for the messages of `record`.
  virtual void set_place(const std::function<std::string()>& /*place*/) {}
};

}  // namespace fulgur
