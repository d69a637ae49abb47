#pragma once

#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// The module's buffers as they were before an accumulation window, for `on_nonfinite: skip`: a forward updates running
/// statistics before it is known that the step is skipped.
///
/// The copies keep their memory over all windows, so that saving and restoring may be recorded in a captured step. A
/// buffer that a forward has replaced, by assignment or by other memory, gets its own memory with the old values: other
/// objects may own the memory that the module put in its place.
class WindowBuffers {
 public:
  /// Saves the buffers at the start of a window; does nothing for a module without buffers.
  void save(const LightningModule& module);
  /// Restores the buffers.
  void restore(const LightningModule& module);
  /// Restores them if `found_inf`, a scalar on a device, is nonzero. Waits for it only if a buffer has another shape or
  /// dtype than before the window.
  void restore_if(const Tensor& found_inf, const LightningModule& module);

  /// The copies, for a checkpoint inside a window.
  StateTree::List state() const;
  void load_state(const StateTree::List& state, const LightningModule& module);

 private:
  struct Held {
    Tensor buffer;  ///< the module's own, when it was saved; may be undefined
    Tensor live;    ///< a view of the buffer's memory
    Tensor saved;
    bool is_still(const Tensor& now) const;
    bool has_values() const { return saved.defined() && saved.numel() > 0; }
  };
  struct Lists {
    std::vector<Tensor> live, saved;
  };

  void find(const LightningModule& module);
  Lists lists() const;
  std::vector<Tensor> now(const LightningModule& module) const;

  std::vector<Held> held_;
};

}  // namespace fulgur::detail
