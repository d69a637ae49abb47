#pragma once

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/state/copy_state.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "run/callback_list.h"

namespace fulgur::detail {

/// The states of callbacks at one moment, so that they can be restored.
class CallbackStates {
 public:
  /// Copies the states. Waits for no device.
  explicit CallbackStates(const CallbackList& callbacks) {
    for (const auto& callback : callbacks) add(callback);
  }
  /// Only of the callbacks that override one of `hooks`.
  CallbackStates(const CallbackList& callbacks, std::initializer_list<Hook> hooks) {
    for (const auto& callback : callbacks) {
      const auto& overridden = ComponentAccess::overridden(*callback);
      if (std::ranges::any_of(hooks, [&](Hook hook) { return overridden.has(hook); })) add(callback);
    }
  }
  /// Loads them into the callbacks. A callback that refuses its state stays as it is, which is logged.
  void restore() const noexcept {
    restore(/*that_write_checkpoints=*/true);
    restore(/*that_write_checkpoints=*/false);
  }
  /// Loads them into the callbacks that write checkpoints, or into all others.
  void restore(bool that_write_checkpoints) const noexcept {
    for (const auto& [callback, state] : states_) {
      if ((callback->phase() == Phase::checkpoint) != that_write_checkpoints) continue;
      try {
        callback->load_state(copy_state(state));
      } catch (const std::exception& error) {
        log::error(cat("the state of callback ", callback->state_key(), " was not restored: ", error.what()));
      } catch (...) {
        log::error("the state of a callback was not restored: an exception of unknown type");
      }
    }
  }

 private:
  void add(const std::shared_ptr<Callback>& callback) {
    if (StateTree state = callback->state(); !state.is_map() || !state.as_map().empty())
      states_.emplace_back(callback, copy_state(state));
  }

  std::vector<std::pair<std::shared_ptr<Callback>, StateTree>> states_;
};

}  // namespace fulgur::detail
