#include "fulgur/core/state/copy_state.h"

namespace fulgur::detail {

StateTree copy_state(const StateTree& state) {
  if (state.is_tensor()) return state.tensor().defined() ? state.tensor().detach().clone() : state;
  StateTree copy = state;
  if (copy.is_map())
    for (auto& [key, value] : copy.as_map()) value = copy_state(value);
  if (copy.is_list())
    for (StateTree& item : copy.as_list()) item = copy_state(item);
  return copy;
}

}  // namespace fulgur::detail
