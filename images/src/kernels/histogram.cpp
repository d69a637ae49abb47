#include <algorithm>
#include <array>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// The new level of each level.
using LevelTable = std::array<uint8_t, 256>;

Tensor with_table(const Tensor& image, const LevelTable& table) {
  const Tensor from = planar(image);
  Tensor out = new_image(from.size(0), size_of(from));
  const uint8_t* const data = from.const_data_ptr<uint8_t>();
  uint8_t* const to = out.data_ptr<uint8_t>();
  for (int64_t i = 0; i < from.numel(); ++i) to[i] = table[data[i]];
  return out;
}

LevelTable same_levels() {
  LevelTable table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(i);
  return table;
}

using LevelCounts = std::array<int64_t, 256>;

LevelTable stretched(const LevelCounts& counts) {
  size_t low = 0, high = 255;
  while (counts[low] == 0) ++low;
  while (counts[high] == 0) --high;
  if (low == high) return same_levels();
  const float scale = static_cast<float>(high - low) * static_cast<float>(1.0 / 255);
  LevelTable table = same_levels();
  for (size_t i = low; i <= high; ++i)
    table[i] = static_cast<uint8_t>(clamp_pixel(static_cast<float>(i - low) / scale));
  return table;
}

// Pillow's rule, which torchvision follows.
LevelTable equalized(const LevelCounts& counts) {
  size_t high = 255;
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  while (counts[high] == 0) --high;
  const int64_t step = (total - counts[high]) / 255;
  LevelTable table = same_levels();
  if (step == 0) return table;
  int64_t below = step / 2;
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<uint8_t>(std::min<int64_t>(below / step, 255));
    below += counts[i];
  }
  return table;
}

// Each channel with a table from its histogram.
template <class Rule>
Tensor by_histogram(const Tensor& image, Rule rule) {
  const Tensor from = planar(image);
  const int64_t count = from.size(1) * from.size(2);
  Tensor out = new_image(from.size(0), size_of(from));
  for (int64_t c = 0; c < from.size(0); ++c) {
    const uint8_t* const levels = from.const_data_ptr<uint8_t>() + c * count;
    LevelCounts counts{};
    for (int64_t i = 0; i < count; ++i) ++counts[levels[i]];
    const LevelTable table = rule(counts);
    uint8_t* const to = out.data_ptr<uint8_t>() + c * count;
    for (int64_t i = 0; i < count; ++i) to[i] = table[levels[i]];
  }
  return out;
}

}  // namespace

Tensor invert(const Tensor& image) {
  check_uint8(image, "images.invert");
  LevelTable table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(255 - i);
  return with_table(image, table);
}

Tensor posterize(const Tensor& image, int64_t bits) {
  check_uint8(image, "images.posterize");
  if (bits < 0 || bits > 8)
    throw ConfigError(cat("[images.posterize] the number of bits must be from 0 to 8; got ", bits, "."));
  LevelTable table;
  const size_t mask = ((size_t{1} << bits) - 1) << (8 - bits);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(i & mask);
  return with_table(image, table);
}

Tensor solarize(const Tensor& image, double threshold) {
  check_uint8(image, "images.solarize");
  LevelTable table = same_levels();
  for (size_t i = 0; i < table.size(); ++i)
    if (static_cast<double>(i) >= threshold) table[i] = static_cast<uint8_t>(255 - i);
  return with_table(image, table);
}

Tensor autocontrast(const Tensor& image) {
  check_uint8(image, "images.autocontrast");
  return by_histogram(image, stretched);
}

Tensor equalize(const Tensor& image) {
  check_uint8(image, "images.equalize");
  return by_histogram(image, equalized);
}

}  // namespace fulgur::images
