#include "fulgur/core/contracts/callback.h"

#include "text/class_name.h"

namespace fulgur {

FollowsWeights::~FollowsWeights() = default;
Callback::~Callback() = default;

std::string Callback::state_key() const { return detail::class_name(typeid(*this)); }

}  // namespace fulgur
