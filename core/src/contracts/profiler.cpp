#include "fulgur/core/contracts/profiler.h"

namespace fulgur {

Profiler::~Profiler() = default;

}  // namespace fulgur
