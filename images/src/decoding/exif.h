#pragma once

#include <cstdint>
#include <span>

namespace fulgur::detail {

/// The orientation, 1 to 8, in EXIF data with or without the prefix `Exif\0\0`; 1 for data without one and for damaged
/// data.
int exif_orientation(std::span<const uint8_t> exif);

}  // namespace fulgur::detail
