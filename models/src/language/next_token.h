#pragma once

#include "fulgur/core/state/tensor.h"
#include "fulgur/models/generate.h"

namespace fulgur::detail {

/// A token of each row of logits (N, V): the one at which the sum of the probabilities, sorted downwards and cut by
/// top_k and top_p, exceeds `draws` (N), float64 in [0, 1). Of equal probabilities, the one of the smaller token comes
/// first. With temperature 0, the most probable token; `draws` may be undefined.
Tensor next_token(const Tensor& logits, const Tensor& draws, const GenerateOptions& options);

/// The random number in [0, 1) for a token: a function of its arguments.
double draw_of(int64_t seed, uint64_t prompt, int64_t position);

}  // namespace fulgur::detail
