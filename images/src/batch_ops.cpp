#include "batch_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

Tensor counting(const Tensor& images, int64_t count, at::ScalarType dtype) {
  return at::arange(count, at::TensorOptions().dtype(dtype).device(images.device()));
}

// Column `index` of the parameters, one number per image.
Tensor column(const Tensor& parameters, int64_t index, at::IntArrayRef shape) {
  return parameters.select(1, index).reshape(shape);
}

Tensor fill_values(const Tensor& images, c10::ArrayRef<double> fill, const char* who) {
  std::vector<double> values = per_channel(fill, images.size(1), who, "fill");
  if (images.scalar_type() == at::kByte)
    for (double& value : values) value = fill_pixel<uint8_t>(value);
  return channel_values(images, values, images.scalar_type());
}

struct ShownPlaces {
  Tensor places;  // (N, count), inside the axis
  Tensor inside;  // (N, count): whether the pixel is one of the image
};

ShownPlaces shown_places(const Tensor& images, const Tensor& first, int64_t count, int64_t length, PaddingMode mode) {
  const Tensor places = first.to(at::kLong).unsqueeze(1) + counting(images, count, at::kLong).unsqueeze(0);
  const Tensor inside = places.ge(0).logical_and(places.lt(length));
  if (mode == PaddingMode::reflect) return {(length - 1) - ((length - 1) - places.abs()).abs(), inside};
  return {places.clamp(0, length - 1), inside};
}

}  // namespace

Tensor channel_values(const Tensor& images, const std::vector<double>& values, at::ScalarType dtype) {
  const auto channels = static_cast<int64_t>(values.size());
  Tensor out = at::empty({1, channels, 1, 1}, at::TensorOptions().dtype(dtype).device(images.device()));
  for (int64_t c = 0; c < channels; ++c) out.select(1, c).fill_(values[static_cast<size_t>(c)]);
  return out;
}

Tensor batch_windows(const Tensor& images, const Tensor& parameters, ImageSize size, PaddingMode mode,
                     c10::ArrayRef<double> fill) {
  const int64_t count = images.size(0), channels = images.size(1), height = images.size(2), width = images.size(3);
  const ShownPlaces rows = shown_places(images, parameters.select(1, 0), size.height, height, mode);
  const ShownPlaces columns = shown_places(images, parameters.select(1, 1), size.width, width, mode);
  const Tensor places = (rows.places * width).unsqueeze(2) + columns.places.unsqueeze(1);
  const int64_t pixels = size.height * size.width;
  const Tensor index = places.reshape({count, 1, pixels}).expand({count, channels, pixels});
  const Tensor taken = images.reshape({count, channels, height * width})
                           .gather(2, index)
                           .reshape({count, channels, size.height, size.width});
  if (mode != PaddingMode::constant) return taken;
  const Tensor inside = rows.inside.unsqueeze(2).logical_and(columns.inside.unsqueeze(1)).unsqueeze(1);
  return at::where(inside, taken, fill_values(images, fill, "images.RandomCrop"));
}

Tensor batch_flip(const Tensor& images, const Tensor& parameters, int64_t dimension) {
  return at::where(column(parameters, 0, {-1, 1, 1, 1}).gt(0.5), images.flip({dimension}), images);
}

Tensor batch_to_float(const Tensor& images) {
  return images.scalar_type() == at::kByte ? images.to(at::kFloat).div_(255) : images;
}

Tensor batch_erase(const Tensor& images, const Tensor& parameters, c10::ArrayRef<double> fill) {
  const Tensor rows = counting(images, images.size(2), at::kFloat).reshape({1, 1, -1, 1});
  const Tensor columns = counting(images, images.size(3), at::kFloat).reshape({1, 1, 1, -1});
  const auto number = [&](int64_t index) { return column(parameters, index, {-1, 1, 1, 1}); };
  const auto within = [](const Tensor& places, const Tensor& first, const Tensor& length) {
    return places.ge(first).logical_and(places.lt(first + length));
  };
  const Tensor hidden = within(rows, number(0), number(2)).logical_and(within(columns, number(1), number(3)));
  return at::where(hidden, fill_values(images, fill, "images.RandomErasing"), images);
}

Tensor batch_color_jitter(const Tensor& images, const Tensor& parameters, bool has_contrast, bool has_saturation) {
  if (images.scalar_type() != at::kByte)
    throw ConfigError(cat("[images.ColorJitter] the transform takes uint8 images; got ",
                          c10::toString(images.scalar_type()), ". Put it before ToFloat and Normalize in the list."));
  const int64_t channels = images.size(1);
  const auto pixels = static_cast<double>(images.size(2) * images.size(3));
  const bool has_gray = has_contrast || has_saturation;
  Tensor values = images.to(at::kFloat);
  const auto number = [&](int64_t index) { return column(parameters, index, {-1, 1, 1, 1}); };
  for (int64_t i = 0; i < 4; ++i) {
    const Tensor operation = number(i);
    const Tensor is_brightness = operation.eq(0), is_contrast = operation.eq(1), is_saturation = operation.eq(2);
    // A scalar in at::where would be copied to the device, for which the host waits.
    Tensor factor = number(4).masked_fill(is_brightness.logical_not(), 1);
    if (has_contrast) factor = at::where(is_contrast, number(5), factor);
    // The saturation of one channel does not exist.
    if (has_saturation && channels == 3) factor = at::where(is_saturation, number(6), factor);
    Tensor changed = values * factor;
    if (has_gray) {
      const Tensor gray =
          channels == 1
              ? values
              : (values.narrow(1, 0, 1) * 0.2989 + values.narrow(1, 1, 1) * 0.587 + values.narrow(1, 2, 1) * 0.114)
                    .floor_();
      Tensor base = gray.masked_fill(is_saturation.logical_not(), 0);
      if (has_contrast) {
        // Sums of whole numbers are exact in any order.
        const Tensor mean = (gray.sum({1, 2, 3}, /*keepdim=*/true, at::kDouble) / pixels).to(at::kFloat);
        base = at::where(is_contrast, mean, base);
      }
      changed = changed + base * (1 - factor);
    }
    values = changed.clamp_(0, 255).floor_();
  }
  return values.to(at::kByte);
}

}  // namespace fulgur::images
