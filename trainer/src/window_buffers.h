#pragma once

#include <utility>
#include <vector>

#include "fulgur/core/module.h"
#include "fulgur/core/state_tree.h"

namespace fulgur::detail {

/// The module's buffers as they were before an accumulation window, for `on_nonfinite: skip`: a forward updates running
/// statistics before anybody knows that the step is left out.
///
/// The copies keep their memory over all windows, so that saving and restoring may be recorded in a captured step.
class WindowBuffers {
 public:
  /// Saves them, where a window begins; nothing is done for a module without buffers.
  void save(const LightningModule& module);
  /// Puts them back.
  void restore();
  /// Puts them back if `found_inf`, a scalar on a device, is not 0. Does not wait for it.
  void restore_if(const Tensor& found_inf);

  /// The copies, for a checkpoint inside a window.
  StateTree::List state() const;
  void load_state(const StateTree::List& state, const LightningModule& module);

 private:
  void find(const LightningModule& module);

  std::vector<Tensor> live_, saved_;
};

}  // namespace fulgur::detail
