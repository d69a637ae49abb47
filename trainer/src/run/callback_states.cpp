#include "run/callback_states.h"

#include <exception>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

namespace {

// A state may alias tensors that its callback changes.
StateTree copy_of(const StateTree& state) {
  if (state.is_tensor()) return state.tensor().defined() ? state.tensor().detach().clone() : state;
  if (state.is_map()) {
    StateTree::Map map;
    for (const auto& [key, value] : state.as_map()) map.emplace(key, copy_of(value));
    return map;
  }
  if (state.is_list()) {
    StateTree::List list;
    for (const StateTree& item : state.as_list()) list.push_back(copy_of(item));
    return list;
  }
  return state;
}

}  // namespace

CallbackStates::CallbackStates(const CallbackList& callbacks) {
  for (const auto& callback : callbacks)
    if (StateTree state = callback->state(); !state.is_map() || !state.as_map().empty())
      states_.emplace_back(callback, copy_of(state));
}

void CallbackStates::restore() const noexcept {
  restore(/*that_write_checkpoints=*/true);
  restore(/*that_write_checkpoints=*/false);
}

void CallbackStates::restore(bool that_write_checkpoints) const noexcept {
  for (const auto& [callback, state] : states_) {
    if ((callback->phase() == Phase::checkpoint) != that_write_checkpoints) continue;
    try {
      callback->load_state(copy_of(state));
    } catch (const std::exception& error) {
      log::error(cat("the state of callback ", callback->state_key(), " was not restored: ", error.what()));
    } catch (...) {
      log::error("the state of a callback was not restored: an exception of unknown type");
    }
  }
}

}  // namespace fulgur::detail
