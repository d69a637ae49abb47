#pragma once

#include <malloc.h>

namespace fulgur {

/// Returns memory of the C library that is free to the system. It keeps blocks between others, which after many large
/// ones may be as much as all that is in use.
inline void return_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace fulgur
