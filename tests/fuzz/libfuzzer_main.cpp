// One program per target: FULGUR_FUZZ_TARGET names it.
#include <cstdint>

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fulgur::fuzz::FULGUR_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
