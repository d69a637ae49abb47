#pragma once

#include "fulgur/core/export.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// Gives each parameter and buffer that stands for values (`stored_values`) these values, on the CPU. Each keeps its
/// identity. One tensor after the other.
FULGUR_API void materialize_module(torch::nn::Module& module);

}  // namespace fulgur
