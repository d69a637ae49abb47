#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/state/batch.h"

namespace fulgur::detail {

/// A batch from lists with one tensor per sample: `tokens` (N, T) int64, filled up with `pad_id`; `mask` (N, T) bool,
/// true where a sample has a token; and `numbers`, entries with one int64 per sample, (N). T is the length of the
/// longest sample, and at least `width`.
Batch padded_samples(const Batch& samples, const std::vector<std::string>& numbers, int64_t width, int64_t pad_id);

}  // namespace fulgur::detail
