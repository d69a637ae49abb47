#pragma once

#include <utility>
#include <vector>

#include "fulgur/core/contracts/shapes_batches.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// The callbacks of a run that change training batches (`ShapesBatches`).
class BatchShaping {
 public:
  explicit BatchShaping(const RunState& run) {
    for (const auto& callback : run.callbacks)
      if (auto* const shapes = dynamic_cast<ShapesBatches*>(callback.get()))
        shaping_.push_back({.shapes = shapes, .callback = callback.get()});
  }

  /// Lets those callbacks change the batch that are due at the run's position. The caller keeps the batch as it was
  /// loaded until the device no longer uses it.
  void shape(RunState& run, RunContext& context, Batch& batch) const {
    for (const Shaping& each : shaping_) {
      if (!run.is_due(*each.callback)) continue;
      const char* const before = std::exchange(run.position.doing, "shape_batch of a callback");
      batch = each.shapes->shape_batch(context, batch);
      run.position.doing = before;
    }
  }

 private:
  struct Shaping {
    ShapesBatches* shapes;
    const Callback* callback;  // the same object
  };
  std::vector<Shaping> shaping_;
};

}  // namespace fulgur::detail
