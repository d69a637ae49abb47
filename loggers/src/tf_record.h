#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fulgur {

/// CRC-32C (Castagnoli) of `bytes`, or of a text whose CRC is `before` and `bytes` together.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

/// `crc` as records hold it: rotated and shifted, so that the CRC of data with a CRC in it stays a good one.
uint32_t masked_crc(uint32_t crc);

/// `data` as a record of TensorFlow's record files: its length, the masked CRC of that, `data`, the masked CRC of that;
/// all numbers little-endian.
std::string tf_record(std::string_view data);

}  // namespace fulgur
