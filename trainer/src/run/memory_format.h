#pragma once

#include "fulgur/core/batch.h"
#include "fulgur/core/module.h"

namespace fulgur::detail {

/// Gives floating parameters and buffers of four dimensions the strides of channels-last, in place: who holds one of
/// them sees its new layout. Before optimizers are made, and before a Reducer is.
void to_channels_last(LightningModule& module);

/// The batch's floating tensors of four dimensions with the strides of channels-last; the others are shared.
void to_channels_last(Batch& batch);

}  // namespace fulgur::detail
