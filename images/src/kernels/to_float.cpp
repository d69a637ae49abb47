#include <algorithm>
#include <array>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

using FloatTable = std::array<float, 256>;

void look_up(const uint8_t* levels, const FloatTable& table, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = table[levels[i]];
}

FULGUR_VECTORIZED void standardize(const float* values, float mean, float std, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = (values[i] - mean) / std;
}

template <class T>
void fill_box(T* data, int64_t channels, ImageSize size, const Box& box, const std::vector<double>& values) {
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t y = box.top; y < box.top + box.height; ++y)
      std::fill_n(data + (c * size.height + y) * size.width + box.left, box.width,
                  fill_pixel<T>(values[static_cast<size_t>(c)]));
}

}  // namespace

Tensor to_float(const Tensor& image) {
  check_image(image, "images.to_float");
  if (image.scalar_type() == at::kFloat) return image;
  const Tensor from = planar(image);
  FloatTable table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i) / 255;
  Tensor out = new_image(from.size(0), size_of(from), at::kFloat);
  look_up(from.const_data_ptr<uint8_t>(), table, out.data_ptr<float>(), from.numel());
  return out;
}

Tensor normalize(const Tensor& image, c10::ArrayRef<double> mean, c10::ArrayRef<double> std) {
  check_image(image, "images.normalize");
  const int64_t channels = image.size(0), count = image.size(1) * image.size(2);
  const auto means = per_channel(mean, channels, "images.Normalize", "mean");
  const auto deviations = per_channel(std, channels, "images.Normalize", "std");
  const Tensor from = planar(image);
  Tensor out = new_image(channels, size_of(from), at::kFloat);
  for (int64_t c = 0; c < channels; ++c) {
    const auto one_mean = static_cast<float>(means[static_cast<size_t>(c)]);
    const auto one_std = static_cast<float>(deviations[static_cast<size_t>(c)]);
    float* const to = out.data_ptr<float>() + c * count;
    if (from.scalar_type() == at::kFloat) {
      standardize(from.const_data_ptr<float>() + c * count, one_mean, one_std, to, count);
      continue;
    }
    FloatTable table;
    for (size_t i = 0; i < table.size(); ++i) table[i] = (static_cast<float>(i) / 255 - one_mean) / one_std;
    look_up(from.const_data_ptr<uint8_t>() + c * count, table, to, count);
  }
  return out;
}

Tensor erase(const Tensor& image, const Box& box, c10::ArrayRef<double> fill) {
  check_image(image, "images.erase");
  check_inside(image, box, "images.erase");
  const auto values = per_channel(fill, image.size(0), "images.erase", "fill");
  const Tensor from = planar(image);
  Tensor out = new_image(from.size(0), size_of(from), from.scalar_type());
  if (from.scalar_type() == at::kByte) {
    std::copy_n(from.const_data_ptr<uint8_t>(), from.numel(), out.data_ptr<uint8_t>());
    fill_box(out.data_ptr<uint8_t>(), from.size(0), size_of(from), box, values);
  } else {
    std::copy_n(from.const_data_ptr<float>(), from.numel(), out.data_ptr<float>());
    fill_box(out.data_ptr<float>(), from.size(0), size_of(from), box, values);
  }
  return out;
}

}  // namespace fulgur::images
