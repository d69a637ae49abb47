#include "fulgur/core/contracts/verb.h"

namespace fulgur {

Verb::~Verb() = default;

}  // namespace fulgur
