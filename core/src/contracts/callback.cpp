#include "fulgur/core/contracts/callback.h"

#include <algorithm>

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

CallbackFilter::Position Callback::last_position(const Progress& progress) {
  // An epoch may have begun without a batch.
  const bool in_epoch = progress.in_epoch() && progress.batches.completed > 0;
  return {.step = progress.global_step, .epoch = in_epoch ? progress.epoch + 1 : std::max<int64_t>(progress.epoch, 1)};
}

std::string Callback::state_key() const { return detail::class_name(typeid(*this)); }

}  // namespace fulgur
