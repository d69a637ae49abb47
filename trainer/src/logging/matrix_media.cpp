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

TableRecord matrix_table(const std::string& name, const Tensor& numbers, bool integers) {
  TableRecord table{.name = name, .columns = {""}, .rows = {}};
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

std::vector<MediaRecord> draw_matrix(const std::string& name, const Tensor& values) {
  const at::NoGradGuard no_grad;
  const Tensor numbers = values.to(at::kCPU, at::kDouble);
  return {ImageRecord{name, matrix_picture(numbers)},
          matrix_table(name, numbers, !c10::isFloatingType(values.scalar_type()))};
}

}  // namespace fulgur::detail
