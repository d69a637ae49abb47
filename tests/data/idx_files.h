#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace fulgur::test {

/// An idx file of unsigned bytes as text.
inline std::string idx_text(const std::vector<uint32_t>& dims, const std::string& values, uint8_t type = 0x08) {
  std::string text = {'\0', '\0', static_cast<char>(type), static_cast<char>(dims.size())};
  for (const uint32_t size : dims)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(size >> shift & 255);
  return text + values;
}

inline std::string gzip(const std::string& text, int level = 6) {
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw std::runtime_error("deflate");
  return out;
}

/// A file of about 10 MB that unpacks to 10 GB of zeros after `text`: one gzip member, a thousand times.
inline std::string gzip_bomb(const std::string& text) {
  const std::string member = gzip(std::string(10'000'000, '\0'), 9);
  std::string bomb = gzip(text);
  bomb.reserve(bomb.size() + 1000 * member.size());
  for (int i = 0; i < 1000; ++i) bomb += member;
  return bomb;
}

/// The four files of a small data set: `train` and `test` images of 4x3 pixels whose values are the image's index,
/// labels index modulo 10.
inline void write_small_mnist(const std::filesystem::path& folder, uint32_t train, uint32_t test,
                              bool compressed = false) {
  for (const auto& [prefix, count] : {std::pair{"train", train}, std::pair{"t10k", test}}) {
    std::string pixels, labels;
    for (uint32_t i = 0; i < count; ++i) {
      pixels += std::string(12, static_cast<char>(i));
      labels += static_cast<char>(i % 10);
    }
    const std::string images_text = idx_text({count, 4, 3}, pixels), labels_text = idx_text({count}, labels);
    const std::string suffix = compressed ? ".gz" : "";
    write_text(folder / (std::string(prefix) + "-images-idx3-ubyte" + suffix),
               compressed ? gzip(images_text) : images_text);
    write_text(folder / (std::string(prefix) + "-labels-idx1-ubyte" + suffix),
               compressed ? gzip(labels_text) : labels_text);
  }
}

}  // namespace fulgur::test
