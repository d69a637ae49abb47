#include "decoding/image_reader.h"

#include <algorithm>
#include <string_view>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool begins_with(std::span<const uint8_t> bytes, std::string_view magic, size_t at = 0) {
  return bytes.size() >= at + magic.size() &&
         std::equal(magic.begin(), magic.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

/// What the file seems to be, for the message.
std::string kind_of_file(std::span<const uint8_t> bytes) {
  if (begins_with(bytes, "GIF8")) return "a GIF";
  if (begins_with(bytes, "BM")) return "a BMP";
  if (begins_with(bytes, std::string_view("II*\0", 4)) || begins_with(bytes, std::string_view("MM\0*", 4)))
    return "a TIFF";
  if (begins_with(bytes, "ftyp", 4)) return "a HEIF or AVIF";
  if (begins_with(bytes, "version https://git-lfs")) return "a Git LFS pointer, which `git lfs pull` replaces";
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex = "a file that begins with";
  for (const uint8_t byte : bytes.first(std::min<size_t>(bytes.size(), 8))) {
    hex += ' ';
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace

ImageReader& reader_of(std::span<const uint8_t> bytes) {
  if (bytes.empty()) throw BadImage("it is empty (0 bytes)");
  if (begins_with(bytes, "\xff\xd8\xff")) return jpeg_reader();
  if (begins_with(bytes, "\x89PNG\r\n\x1a\n")) return png_reader();
  if (begins_with(bytes, "RIFF") && begins_with(bytes, "WEBP", 8)) return webp_reader();
  throw BadImage(cat("it must be JPEG, PNG or WebP; it is ", kind_of_file(bytes)));
}

void check_pixels(PixelSize size, int64_t max_pixels) {
  // Both are below 2^32, so the product may need 64 bits without a sign.
  const uint64_t pixels = static_cast<uint64_t>(size.height) * static_cast<uint64_t>(size.width);
  if (pixels > static_cast<uint64_t>(max_pixels))
    throw BadImage(cat("it may have at most max_pixels = ", max_pixels, " pixels; its header says ", size.width, "x",
                       size.height, " (width x height)"));
}

}  // namespace fulgur::detail
