#pragma once

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/batch.h"

namespace fulgur::detail {

/// Gives 4-D floating-point parameters and buffers channels-last strides, in place, so that all holders see the new
/// layout. Call before optimizers and Reducers are created.
void to_channels_last(LightningModule& module);

/// The batch's 4-D floating-point tensors with channels-last strides; the others are shared.
void to_channels_last(Batch& batch);

}  // namespace fulgur::detail
