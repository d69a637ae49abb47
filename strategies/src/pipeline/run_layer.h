#pragma once

#include <cstdint>

#include "fulgur/core/contracts/layer_chain.h"

namespace fulgur::detail {

/// What the layer returns for `values`. Throws an Error that names the layer if it fails, returns nothing or an
/// undefined tensor, or changes its arguments in place, which the rank that has computed them would not see. Errors of
/// Fulgur and of the memory of a device pass unchanged.
LayerChain::Values run_layer(const LayerChain::Layer& layer, const LayerChain::Values& values, int64_t micro_batch);

}  // namespace fulgur::detail
