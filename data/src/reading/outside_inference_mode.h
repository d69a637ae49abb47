#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace fulgur {

/// During its lifetime, this thread is not in inference mode, and gradients stay as they were. Inference mode belongs
/// to a thread: tensors of a batch that a run made in it could not be written by workers, which are outside of it.
class OutsideInferenceMode {
 private:
  bool has_gradients_ = c10::GradMode::is_enabled();
  c10::InferenceMode normal_{false};
  c10::AutoGradMode gradients_{has_gradients_};  // after the other, which enables them
};

}  // namespace fulgur
