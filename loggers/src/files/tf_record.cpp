#include "files/tf_record.h"

#include <boost/crc.hpp>

namespace fulgur {
namespace {

template <class T>
void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

uint32_t reversed_bits(uint32_t value) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (value >> i & 1) << (31 - i);
  return reversed;
}

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  // Continues from the remainder, which Boost expects with its bits reversed.
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc(reversed_bits(~before));
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

uint32_t masked_crc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8; }

std::string tf_record(std::string_view data) {
  std::string record;
  record.reserve(data.size() + 16);
  append_little_endian(record, static_cast<uint64_t>(data.size()));
  append_little_endian(record, masked_crc(crc32c(record)));
  record += data;
  append_little_endian(record, masked_crc(crc32c(data)));
  return record;
}

}  // namespace fulgur
