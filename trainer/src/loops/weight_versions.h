#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The parameters of a module at one moment: tells whether they were written or replaced since. Waits for no device.
class WeightVersions {
 public:
  explicit WeightVersions(const LightningModule& module) {
    for (const Tensor& parameter : module.parameters())
      if (parameter.defined()) versions_.push_back({parameter, data_of(parameter), version_of(parameter)});
  }
  bool changed() const {
    return std::ranges::any_of(versions_, [](const Version& then) {
      return data_of(then.tensor) != then.data || version_of(then.tensor) != then.number;
    });
  }

 private:
  // Divided parameters have no memory now, and may not be read.
  static const void* data_of(const Tensor& tensor) {
    return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()
                                : nullptr;
  }
  static int64_t version_of(const Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

  struct Version {
    Tensor tensor;
    const void* data;
    int64_t number;
  };
  std::vector<Version> versions_;
};

}  // namespace fulgur::detail
