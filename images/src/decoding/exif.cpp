#include "decoding/exif.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace fulgur::detail {
namespace {

/// Numbers of a TIFF structure; 0 beyond its end.
struct TiffBytes {
  std::span<const uint8_t> bytes;
  bool big_endian;

  uint32_t number(size_t at, size_t width) const {
    if (at > bytes.size() || bytes.size() - at < width) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < width; ++i) {
      const size_t place = big_endian ? width - 1 - i : i;
      value |= static_cast<uint32_t>(bytes[at + i]) << (8 * place);
    }
    return value;
  }
};

}  // namespace

int exif_orientation(std::span<const uint8_t> exif) {
  constexpr std::array<uint8_t, 6> kPrefix{'E', 'x', 'i', 'f', 0, 0};
  if (exif.size() >= kPrefix.size() && std::equal(kPrefix.begin(), kPrefix.end(), exif.begin()))
    exif = exif.subspan(kPrefix.size());
  if (exif.size() < 8 || exif[0] != exif[1] || (exif[0] != 'I' && exif[0] != 'M')) return 1;
  const TiffBytes tiff{exif, exif[0] == 'M'};
  if (tiff.number(2, 2) != 42) return 1;
  const size_t folder = tiff.number(4, 4);
  const size_t entries = tiff.number(folder, 2);
  constexpr size_t kEntryBytes = 12;
  constexpr uint32_t kOrientation = 0x0112, kShort = 3, kLong = 4;
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = folder + 2 + i * kEntryBytes;
    if (entry > exif.size() || exif.size() - entry < kEntryBytes) return 1;
    if (tiff.number(entry, 2) != kOrientation) continue;
    const uint32_t type = tiff.number(entry + 2, 2);
    const uint32_t value = type == kShort ? tiff.number(entry + 8, 2) : type == kLong ? tiff.number(entry + 8, 4) : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace fulgur::detail
