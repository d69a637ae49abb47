#include "fulgur/core/strategy.h"

namespace fulgur {
Strategy::~Strategy() = default;
Precision::Guard::~Guard() = default;
}  // namespace fulgur
