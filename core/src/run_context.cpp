#include "fulgur/core/run_context.h"

namespace fulgur {
RunContext::~RunContext() = default;
}  // namespace fulgur
