#pragma once

#include <array>
#include <cstdint>

#include "fulgur/core/state/tensor.h"

namespace fulgur::images {

/// The new level of each level.
using LevelTable = std::array<uint8_t, 256>;

/// A uint8 image whose levels are replaced, in planes.
Tensor with_table(const Tensor& image, const LevelTable& table);

}  // namespace fulgur::images
