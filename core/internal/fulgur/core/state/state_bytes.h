#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// Serializes a state for another process of the same run: not for files, since it has no checksums. Tensors are copied
/// to the host.
FULGUR_API std::string pack_state(const StateTree& state);
/// Throws a CheckpointError for bytes that `pack_state` did not write.
FULGUR_API StateTree unpack_state(std::string_view bytes);

}  // namespace fulgur
