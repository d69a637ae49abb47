#pragma once

#include <optional>

#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// A scalar in a state that is still on a device, so that `state()` need not wait for it: the checkpoint stores the
/// number that `scalar` (one element; integer, floating or boolean) has when the state is copied. Until then it is a
/// map `{"__number__": scalar}`; `as_int`, `as_double` etc. read it, which waits for the device. A scalar on the CPU is
/// read at once.
FULGUR_API StateTree late_number(const Tensor& scalar);

/// The number of such a leaf (waits for the device); nullopt for any other.
FULGUR_API std::optional<StateTree> read_late_number(const StateTree& state);

}  // namespace fulgur
