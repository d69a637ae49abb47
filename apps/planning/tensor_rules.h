#pragma once

#include "planning/meta_shapes.h"

namespace fulgur::cli {

/// Rules of operations that are no layers: activations, reductions, losses, indices.
const MetaRules& tensor_rules();

}  // namespace fulgur::cli
