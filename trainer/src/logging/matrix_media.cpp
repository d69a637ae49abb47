#include "logging/matrix_media.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/max_pool2d.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string_view>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

// In pixels. Cells have 8 pixels or more if the picture does not get too large by it.
constexpr int64_t kPictureSize = 256, kLargestPicture = 1024, kLeastCell = 8, kMostCell = 32;

// A matrix that is larger than the largest picture: a pixel shows the largest share of its cells.
Tensor shrunk(const Tensor& shares, int64_t longest) {
  const int64_t step = (longest + kLargestPicture - 1) / kLargestPicture;
  if (step <= 1) return shares;
  return at::max_pool2d(shares.unsqueeze(0), {step, step}, {step, step}, 0, 1, /*ceil_mode=*/true).squeeze(0);
}

// Three columns and five rows of a digit, from its top on.
constexpr int64_t kGlyphWidth = 3, kGlyphHeight = 5, kLargestScale = 3;
constexpr std::string_view kDigits[] = {
    "###"
    "#.#"
    "#.#"
    "#.#"
    "###",
    ".#."
    "##."
    ".#."
    ".#."
    "###",
    "###"
    "..#"
    "###"
    "#.."
    "###",
    "###"
    "..#"
    "###"
    "..#"
    "###",
    "#.#"
    "#.#"
    "###"
    "..#"
    "..#",
    "###"
    "#.."
    "###"
    "..#"
    "###",
    "###"
    "#.."
    "###"
    "#.#"
    "###",
    "###"
    "..#"
    ".#."
    ".#."
    ".#.",
    "###"
    "#.#"
    "###"
    "#.#"
    "###",
    "###"
    "#.#"
    "###"
    "..#"
    "###"};
constexpr std::string_view kPoint = "............#..", kMinus = "......###......", kOther = "...............";

std::string_view glyph_of(char character) {
  if (character >= '0' && character <= '9') return kDigits[character - '0'];
  return character == '.' ? kPoint : character == '-' ? kMinus : kOther;
}

using Pixels = at::TensorAccessor<uint8_t, 2>;

// Writes the text into the middle of a cell, if it fits.
void write_number(Pixels pixels, int64_t top, int64_t left, int64_t cell, std::string_view text) {
  const int64_t width = static_cast<int64_t>(text.size()) * (kGlyphWidth + 1) - 1;
  const int64_t scale = std::min({(cell - 2) / width, (cell - 2) / kGlyphHeight, kLargestScale});
  if (scale < 1) return;
  const uint8_t ink = pixels[top][left] < 128 ? 255 : 0;
  top += (cell - kGlyphHeight * scale) / 2;
  left += (cell - width * scale) / 2;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view glyph = glyph_of(text[i]);
    const int64_t begin = left + static_cast<int64_t>(i) * (kGlyphWidth + 1) * scale;
    for (int64_t y = 0; y < kGlyphHeight * scale; ++y)
      for (int64_t x = 0; x < kGlyphWidth * scale; ++x)
        if (glyph[static_cast<size_t>(y / scale * kGlyphWidth + x / scale)] == '#') pixels[top + y][begin + x] = ink;
  }
}

Tensor matrix_picture(const Tensor& numbers, bool integers) {
  const Tensor sums = numbers.sum(1, /*keepdim=*/true);
  const Tensor shares = (numbers / sums).nan_to_num(0, 0, 0).clamp(0, 1);
  const int64_t longest = std::max<int64_t>({numbers.size(0), numbers.size(1), 1});
  const int64_t least = std::clamp<int64_t>(kLargestPicture / longest, 1, kLeastCell);
  const int64_t cell = std::clamp(kPictureSize / longest, least, kMostCell);
  const Tensor gray = (255 * (1 - shrunk(shares, longest))).round().to(at::kByte);
  const Tensor pixels = gray.repeat_interleave(cell, 0).repeat_interleave(cell, 1).contiguous();
  if (cell > kGlyphHeight + 2) {
    const auto value = numbers.accessor<double, 2>();
    for (int64_t row = 0; row < numbers.size(0); ++row)
      for (int64_t column = 0; column < numbers.size(1); ++column) {
        const double number = value[row][column];
        write_number(pixels.accessor<uint8_t, 2>(), row * cell, column * cell, cell,
                     integers ? cat(static_cast<int64_t>(number)) : format_fixed(number, 2));
      }
  }
  return pixels.expand({3, -1, -1}).contiguous();
}

TableRecord matrix_table(const std::string& name, const Tensor& numbers, const std::string& axes, bool integers) {
  TableRecord table{.name = name, .columns = {axes}, .rows = {}};
  for (int64_t column = 0; column < numbers.size(1); ++column) table.columns.push_back(cat(column));
  const auto value = numbers.accessor<double, 2>();
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    std::vector<TableCell>& cells = table.rows.emplace_back();
    cells.emplace_back(row);
    for (int64_t column = 0; column < numbers.size(1); ++column) {
      const double number = value[row][column];
      if (integers)
        cells.emplace_back(static_cast<int64_t>(number));
      else
        cells.emplace_back(number);
    }
  }
  return table;
}

}  // namespace

std::vector<MediaRecord> draw_matrix(const std::string& name, const Tensor& values, const std::string& axes) {
  const at::NoGradGuard no_grad;
  const Tensor numbers = values.to(at::kCPU, at::kDouble);
  const bool integers = !c10::isFloatingType(values.scalar_type());
  return {ImageRecord{name, matrix_picture(numbers, integers)}, matrix_table(name, numbers, axes, integers)};
}

}  // namespace fulgur::detail
