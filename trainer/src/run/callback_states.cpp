#include "run/callback_states.h"

#include <exception>

#include "fulgur/core/state/copy_state.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

CallbackStates::CallbackStates(const CallbackList& callbacks) {
  for (const auto& callback : callbacks)
    if (StateTree state = callback->state(); !state.is_map() || !state.as_map().empty())
      states_.emplace_back(callback, copy_state(state));
}

void CallbackStates::restore() const noexcept {
  restore(/*that_write_checkpoints=*/true);
  restore(/*that_write_checkpoints=*/false);
}

void CallbackStates::restore(bool that_write_checkpoints) const noexcept {
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

}  // namespace fulgur::detail
