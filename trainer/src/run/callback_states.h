#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/state/state_tree.h"
#include "run/callback_list.h"

namespace fulgur::detail {

/// The states of callbacks at one moment, so that they can be restored.
class CallbackStates {
 public:
  /// Copies the states. Waits for no device.
  explicit CallbackStates(const CallbackList& callbacks);
  /// Loads them into the callbacks. A callback that refuses its state stays as it is, which is logged.
  void restore() const noexcept;
  /// Loads them into the callbacks that write checkpoints, or into all others.
  void restore(bool that_write_checkpoints) const noexcept;

 private:
  std::vector<std::pair<std::shared_ptr<Callback>, StateTree>> states_;
};

}  // namespace fulgur::detail
