#pragma once

#include <memory>

#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/contracts/registry.h"

namespace fulgur::detail {

/// The profiler that the options name; nullptr for `none` and null.
std::shared_ptr<Profiler> make_profiler(const Spec<Profiler>& chosen);

}  // namespace fulgur::detail
