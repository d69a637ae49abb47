#include "fulgur/core/contracts/callback.h"

#include "fulgur/core/contracts/shapes_batches.h"
#include "fulgur/core/text/class_name.h"

namespace fulgur {

namespace {
[[maybe_unused]] const bool callback_filter_registered = [] {
  component_registry(Callback::kRegistryKind).set_common_options([] {
    return std::make_unique<OptionsOf<CallbackFilter>>();
  });
  return true;
}();
}  // namespace

FollowsWeights::~FollowsWeights() = default;
ShapesBatches::~ShapesBatches() = default;
Callback::~Callback() = default;

void Callback::set_common_options(const CallbackFilter& filter) {
  filter.check();
  filter_ = filter;
}

std::string Callback::state_key() const { return detail::class_name(typeid(*this)); }

}  // namespace fulgur
