#pragma once

#include "fulgur/core/export.h"

namespace fulgur {

/// With FULGUR_FAST_EXIT=1 in the environment, the process will end without the destructors of the static objects that
/// exist now. Those of LibTorch take 0.1 s, a third of a short process; the tests start thousands. Streams of stdio are
/// flushed.
FULGUR_API void skip_destructors_if_asked();

}  // namespace fulgur
