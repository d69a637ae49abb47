#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "fulgur/core/contracts/module.h"

namespace fulgur::test {

/// A module whose loss is NaN the first time that `kStep` steps are done.
template <class Base, int64_t kStep>
struct DivergingOnce : Base {
  bool diverged = false;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Base::training_step(batch, batch_idx);
    if (this->global_step() == kStep && !std::exchange(diverged, true))
      output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
    return output;
  }
};

}  // namespace fulgur::test
