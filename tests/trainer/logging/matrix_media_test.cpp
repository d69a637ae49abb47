#include "logging/matrix_media.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>

namespace matrix_media_test {

using namespace fulgur;

namespace {

Tensor picture_of(const Tensor& matrix) {
  return std::get<ImageRecord>(fulgur::detail::draw_matrix("matrix", matrix, "").front()).pixels;
}

}  // namespace

TEST_CASE("the picture of a matrix has cells of 8 to 32 pixels, and at most 1024 pixels in all") {
  const auto width_of = [](int64_t classes) { return picture_of(at::eye(classes, at::kLong)).size(2); };
  CHECK(width_of(2) == 64);
  CHECK(width_of(10) == 250);
  CHECK(width_of(100) == 800);
  CHECK(width_of(256) == 1024);
  CHECK(width_of(1000) == 1000);
  CHECK(width_of(1025) == 513);
}

TEST_CASE("a pixel of a large matrix shows the largest share of its cells") {
  Tensor matrix = at::zeros({2000, 2000}, at::kDouble);
  matrix[1][6] = 3;
  matrix[1][7] = 1;
  const Tensor pixels = picture_of(matrix);
  CHECK(pixels.sizes() == at::IntArrayRef({3, 1000, 1000}));
  CHECK(pixels[0][0][3].item<int64_t>() == 64);  // 255 · (1 - 3/4), rounded
  CHECK(pixels[2][0][4].item<int64_t>() == 255);
  CHECK((pixels != 255).sum().item<int64_t>() == 3);
}

TEST_CASE("a cell of the picture shows its number, if the cell is large enough") {
  const Tensor pixels = picture_of(at::eye(2, at::kLong))[0];
  const auto inked = [&](int64_t row, int64_t column, int64_t ink) {
    return (pixels.narrow(0, row * 32, 32).narrow(1, column * 32, 32) == ink).sum().item<int64_t>();
  };
  // The glyph of 0 has 12 dots of 3 × 3 pixels, black on white, and that of 1 has 8 of them, white on black.
  CHECK(inked(0, 1, 0) == 12 * 9);
  CHECK(inked(0, 0, 255) == 8 * 9);
  CHECK(inked(1, 1, 255) == 8 * 9);
  // Cells of 8 pixels have room for one digit, and not for two.
  const auto numbers = [](int64_t number) {
    return (picture_of(at::eye(100, at::kLong) * number) != 0).sum().item<int64_t>();
  };
  CHECK(numbers(1) > numbers(11));
}

TEST_CASE("the table of a matrix says what its rows and columns are") {
  const auto records = fulgur::detail::draw_matrix("matrix", at::eye(2, at::kLong), "rows: label, columns: prediction");
  REQUIRE(records.size() == 2);
  const auto& table = std::get<TableRecord>(records.back());
  CHECK(table.columns == std::vector<std::string>{"rows: label, columns: prediction", "0", "1"});
  CHECK(table.rows.size() == 2);
}

}  // namespace matrix_media_test
