#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fulgur {

/// CRC-32C (Castagnoli) of `bytes`, or of a text whose CRC is `before` followed by `bytes`.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

/// `crc` as stored in records: rotated and shifted, so that the CRC of data containing a CRC remains a good one.
uint32_t masked_crc(uint32_t crc);

/// `data` as a TensorFlow record: its length, the masked CRC of that, `data`, the masked CRC of that; all numbers
/// little-endian.
std::string tf_record(std::string_view data);

}  // namespace fulgur
