#include "loops/weight_versions.h"

#include <algorithm>

namespace fulgur::detail {
namespace {

const void* data_of(const Tensor& tensor) { return tensor.has_storage() ? tensor.storage().data() : nullptr; }
int64_t version_of(const Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

}  // namespace

WeightVersions::WeightVersions(const LightningModule& module) {
  for (const Tensor& parameter : module.parameters())
    if (parameter.defined()) versions_.push_back({parameter, data_of(parameter), version_of(parameter)});
}

bool WeightVersions::changed() const {
  return std::ranges::any_of(versions_, [](const Version& then) {
    return data_of(then.tensor) != then.data || version_of(then.tensor) != then.number;
  });
}

}  // namespace fulgur::detail
