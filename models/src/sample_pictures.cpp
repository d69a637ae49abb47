#include "sample_pictures.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace fulgur::detail {
namespace {

constexpr int64_t kPicturesInRow = 8;

// (N, C, H, W) with values from 0 to 1.
Tensor with_whole_range(Tensor images) {
  images = images.to(at::kFloat);
  const Tensor least = images.amin({1, 2, 3}, /*keepdim=*/true), most = images.amax({1, 2, 3}, /*keepdim=*/true);
  // An image of one value, or with values that are not finite, is black where it has none.
  return at::nan_to_num((images - least) / (most - least), 0.0, 0.0, 0.0).clamp(0, 1);
}

}  // namespace

std::optional<ImageRecord> picture_of_samples(std::string name, const Tensor& images) {
  const bool is_gray = images.dim() == 3;
  if ((!is_gray && images.dim() != 4) || images.numel() == 0 || images.is_complex()) return std::nullopt;
  Tensor pictures = is_gray ? images.unsqueeze(1) : images;
  if (pictures.size(1) != 3) pictures = pictures.narrow(1, 0, 1);
  pictures = with_whole_range(pictures);
  const int64_t count = pictures.size(0), height = pictures.size(2) + 1, width = pictures.size(3) + 1;
  const int64_t columns = std::min(count, kPicturesInRow), rows = (count + columns - 1) / columns;
  // A line of one pixel lies between pictures.
  Tensor all = at::zeros({pictures.size(1), rows * height - 1, columns * width - 1}, pictures.options());
  for (int64_t i = 0; i < count; ++i)
    all.narrow(1, i / columns * height, height - 1).narrow(2, i % columns * width, width - 1).copy_(pictures[i]);
  return ImageRecord{.name = std::move(name), .pixels = std::move(all)};
}

TableRecord table_of_samples(std::string name, const Tensor& labels, const Tensor& predictions,
                             const Tensor& confidences) {
  const Tensor of_labels = labels.to(at::kCPU, at::kLong).contiguous(),
               of_predictions = predictions.to(at::kCPU, at::kLong).contiguous(),
               of_confidences = confidences.to(at::kCPU, at::kDouble).contiguous();
  TableRecord table{.name = std::move(name), .columns = {"sample", "label", "prediction", "confidence"}, .rows = {}};
  for (int64_t i = 0; i < of_labels.numel(); ++i)
    table.rows.push_back({i + 1, of_labels.const_data_ptr<int64_t>()[i], of_predictions.const_data_ptr<int64_t>()[i],
                          of_confidences.const_data_ptr<double>()[i]});
  return table;
}

}  // namespace fulgur::detail
