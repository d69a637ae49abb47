#include "fulgur/core/collectives.h"

namespace fulgur {
Collectives::~Collectives() = default;
}  // namespace fulgur
