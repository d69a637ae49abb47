#include "logging/matrix_media.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr int64_t kPictureSize = 256, kLeastCell = 8, kMostCell = 32;

Tensor matrix_picture(const Tensor& numbers) {
  const Tensor sums = numbers.sum(1, /*keepdim=*/true);
  const Tensor shares = (numbers / sums).nan_to_num(0, 0, 0).clamp(0, 1);
  const int64_t longest = std::max<int64_t>({numbers.size(0), numbers.size(1), 1});
  const int64_t cell = std::clamp(kPictureSize / longest, kLeastCell, kMostCell);
  const Tensor gray = (255 * (1 - shares)).round().to(at::kByte);
  return gray.repeat_interleave(cell, 0).repeat_interleave(cell, 1).expand({3, -1, -1}).contiguous();
}

std::string matrix_table(const Tensor& numbers, bool integers) {
  std::string text = "| |", line = "\n|---|";
  for (int64_t column = 0; column < numbers.size(1); ++column) {
    text += cat(" ", column, " |");
    line += "---|";
  }
  text += line;
  const auto value = numbers.accessor<double, 2>();
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    text += cat("\n| ", row, " |");
    for (int64_t column = 0; column < numbers.size(1); ++column) {
      const double number = value[row][column];
      text += cat(" ", integers ? cat(static_cast<int64_t>(number)) : format_double(number), " |");
    }
  }
  return text + "\n";
}

}  // namespace

std::vector<MediaRecord> draw_matrix(const std::string& name, const Tensor& values) {
  const at::NoGradGuard no_grad;
  const Tensor numbers = values.to(at::kCPU, at::kDouble);
  return {ImageRecord{name, matrix_picture(numbers)},
          TextRecord{name, matrix_table(numbers, !c10::isFloatingType(values.scalar_type()))}};
}

}  // namespace fulgur::detail
