#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/core/text/errors.h"

namespace fulgur {

/// Thrown by `GraphCapture::record` for work that has been executed as it would be without a recorder, but that cannot
/// be replayed, or that differs from the recording before.
class FULGUR_API StepNotRecorded : public Error {
 public:
  explicit StepNotRecorded(const std::string& message);
  ~StepNotRecorded() override;
};

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
  /// nothing had been recorded. If the host can execute the work while it records it, and finds afterwards that it
  /// cannot be replayed, it throws StepNotRecorded: then the work need not, and must not, be done again.
  virtual void record(const std::function<void()>& body) = 0;
  /// After StepNotRecorded: gives tensors and generators that the work used the values of before it.
  virtual void undo_step() {}
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
  /// `state` gives tensors with their names, such as parameters and buffers: each recording keeps their values from its
  /// beginning, so that it finds what host code writes into them, and `undo_step` restores that as well.
  virtual void set_state(const std::function<std::vector<std::pair<std::string, Tensor>>()>& /*state*/) {}
};

}  // namespace fulgur
