#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The parameters of a module at one moment: tells whether they were written or replaced since. Waits for no device.
class WeightVersions {
 public:
  explicit WeightVersions(const LightningModule& module);
  bool changed() const;

 private:
  struct Version {
    Tensor tensor;
    const void* data;
    int64_t number;
  };
  std::vector<Version> versions_;
};

}  // namespace fulgur::detail
