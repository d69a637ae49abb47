#include "kernels/pixels.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::images {

void check_image(const Tensor& image, const char* who) {
  if (image.dim() != 3 || image.numel() == 0)
    throw DataError(cat("[", who, "] an image must be (channels, height, width) with at least one pixel; got ",
                        shape_text(image.sizes()), "."));
  if (!image.device().is_cpu())
    throw ConfigError(cat("[", who,
                          "] apply() takes one image on the CPU; this one is on another device. Use apply_batch() for "
                          "batches on a device."));
  if (image.scalar_type() != at::kByte && image.scalar_type() != at::kFloat)
    throw ConfigError(
        cat("[", who, "] an image must be uint8 or float32; got ", c10::toString(image.scalar_type()), "."));
}

void check_uint8(const Tensor& image, const char* who) {
  check_image(image, who);
  if (image.scalar_type() != at::kByte)
    throw ConfigError(cat("[", who, "] the transform takes uint8 images; got ", c10::toString(image.scalar_type()),
                          ". Put it before ToFloat and Normalize in the list."));
}

void check_colors(const Tensor& image, const char* who) {
  check_uint8(image, who);
  if (image.size(0) != 1 && image.size(0) != 3)
    throw DataError(cat("[", who, "] an image must have 1 or 3 channels; got ", image.size(0), "."));
}

void check_inside(const Tensor& image, const Box& box, const char* who) {
  if (box.height < 1 || box.width < 1 || box.top < 0 || box.left < 0 || box.top > image.size(1) - box.height ||
      box.left > image.size(2) - box.width)
    throw DataError(cat("[", who, "] a box must have pixels and be inside the image; got rows ", box.top, " + ",
                        box.height, " and columns ", box.left, " + ", box.width, " of ", shape_text(image.sizes()),
                        "."));
}

Tensor new_image(int64_t channels, ImageSize size, at::ScalarType dtype) {
  return at::empty({channels, size.height, size.width}, at::TensorOptions().dtype(dtype));
}

namespace {

template <class T>
void copy_planes(const Tensor& from, Tensor& to) {
  const int64_t height = from.size(1), width = from.size(2);
  const int64_t step = from.stride(2);
  T* out = to.data_ptr<T>();
  for (int64_t c = 0; c < from.size(0); ++c)
    for (int64_t y = 0; y < height; ++y, out += width) {
      const T* row = from.const_data_ptr<T>() + c * from.stride(0) + y * from.stride(1);
      if (step == 1)
        std::memcpy(out, row, static_cast<size_t>(width) * sizeof(T));
      else
        for (int64_t x = 0; x < width; ++x) out[x] = row[x * step];
    }
}

}  // namespace

Tensor planar(const Tensor& image) {
  if (image.is_contiguous()) return image;
  Tensor out = new_image(image.size(0), size_of(image), image.scalar_type());
  if (image.scalar_type() == at::kByte)
    copy_planes<uint8_t>(image, out);
  else
    copy_planes<float>(image, out);
  return out;
}

std::vector<double> per_channel(c10::ArrayRef<double> values, int64_t channels, const char* who, const char* option) {
  if (values.size() == 1) return std::vector<double>(static_cast<size_t>(channels), values[0]);
  if (static_cast<int64_t>(values.size()) != channels)
    throw ConfigError(cat("[", who, "] ", option, " must have one value, or one per channel; it has ", values.size(),
                          " values, and the image has ", counted(channels, "channel"), "."));
  return values.vec();
}

}  // namespace fulgur::images
