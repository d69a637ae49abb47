// Part of each test program.
#include "fulgur/core/system/fast_exit.h"

[[maybe_unused]] static const bool skips_destructors = (fulgur::skip_destructors_if_asked(), true);
