#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// The place in an axis of length `count` whose pixel is shown at `place`; -1 for a constant.
int64_t shown_at(int64_t place, int64_t count, PaddingMode mode) {
  if (place >= 0 && place < count) return place;
  if (mode == PaddingMode::constant) return -1;
  if (mode == PaddingMode::edge) return place < 0 ? 0 : count - 1;
  return place < 0 ? -place : 2 * (count - 1) - place;
}

void check_reflection(int64_t first, int64_t length, int64_t count, const char* axis) {
  const int64_t before = -first, after = first + length - count;
  if (before >= count || after >= count)
    throw DataError(cat("[images.window] a reflected padding must be smaller than the image; the padding is ",
                        before > after ? before : after, " pixels, and the ", axis, " of the image is ", count,
                        ". Use padding_mode: edge, a smaller padding, or larger images."));
}

template <class T>
Tensor padded(const Tensor& image, const Box& box, PaddingMode mode, const std::vector<double>& fill) {
  const int64_t height = image.size(1), width = image.size(2), step = image.stride(2);
  Tensor out = new_image(image.size(0), {box.height, box.width}, image.scalar_type());
  T* to = out.data_ptr<T>();
  // Columns [first, last) of the result are columns of the image.
  const int64_t first = std::clamp<int64_t>(-box.left, 0, box.width);
  const int64_t last = std::clamp<int64_t>(width - box.left, first, box.width);
  for (int64_t c = 0; c < image.size(0); ++c) {
    const T value = fill_pixel<T>(fill[static_cast<size_t>(c)]);
    const T* plane = image.const_data_ptr<T>() + c * image.stride(0);
    for (int64_t y = 0; y < box.height; ++y, to += box.width) {
      const int64_t from_y = shown_at(box.top + y, height, mode);
      if (from_y < 0) {
        std::fill_n(to, box.width, value);
        continue;
      }
      const T* row = plane + from_y * image.stride(1);
      const auto outside = [&](int64_t x) {
        const int64_t from_x = shown_at(box.left + x, width, mode);
        to[x] = from_x < 0 ? value : row[from_x * step];
      };
      for (int64_t x = 0; x < first; ++x) outside(x);
      if (step == 1 && first < last)
        std::memcpy(to + first, row + box.left + first, static_cast<size_t>(last - first) * sizeof(T));
      else
        for (int64_t x = first; x < last; ++x) to[x] = row[(box.left + x) * step];
      for (int64_t x = last; x < box.width; ++x) outside(x);
    }
  }
  return out;
}

FULGUR_VECTORIZED void reverse_row(const uint8_t* row, uint8_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = row[count - 1 - i];
}

FULGUR_VECTORIZED void reverse_row(const float* row, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = row[count - 1 - i];
}

template <class T>
Tensor mirrored(const Tensor& image) {
  const int64_t height = image.size(1), width = image.size(2), step = image.stride(2);
  Tensor out = new_image(image.size(0), size_of(image), image.scalar_type());
  T* to = out.data_ptr<T>();
  for (int64_t c = 0; c < image.size(0); ++c)
    for (int64_t y = 0; y < height; ++y, to += width) {
      const T* row = image.const_data_ptr<T>() + c * image.stride(0) + y * image.stride(1);
      if (step == 1)
        reverse_row(row, to, width);
      else
        for (int64_t x = 0; x < width; ++x) to[x] = row[(width - 1 - x) * step];
    }
  return out;
}

template <class T>
Tensor upside_down(const Tensor& image) {
  const Tensor from = planar(image);
  const int64_t height = from.size(1), width = from.size(2);
  Tensor out = new_image(from.size(0), size_of(from), from.scalar_type());
  const T* source = from.const_data_ptr<T>();
  T* to = out.data_ptr<T>();
  for (int64_t c = 0; c < from.size(0); ++c)
    for (int64_t y = 0; y < height; ++y, to += width)
      std::memcpy(to, source + (c * height + height - 1 - y) * width, static_cast<size_t>(width) * sizeof(T));
  return out;
}

}  // namespace

Tensor window(const Tensor& image, const Box& box, PaddingMode mode, c10::ArrayRef<double> fill) {
  check_image(image, "images.window");
  constexpr int64_t kMost = int64_t{1} << 30;  // no sum of the loops overflows
  if (box.height < 1 || box.width < 1 || box.height > kMost || box.width > kMost || std::abs(box.top) > kMost ||
      std::abs(box.left) > kMost)
    throw DataError(cat("[images.window] a box must have pixels; got rows ", box.top, " + ", box.height,
                        " and columns ", box.left, " + ", box.width, "."));
  const int64_t height = image.size(1), width = image.size(2);
  if (box.top >= 0 && box.left >= 0 && box.top + box.height <= height && box.left + box.width <= width)
    return image.narrow(1, box.top, box.height).narrow(2, box.left, box.width);
  if (mode == PaddingMode::reflect) {
    check_reflection(box.top, box.height, height, "height");
    check_reflection(box.left, box.width, width, "width");
  }
  const double black = 0;
  const auto values =
      per_channel(fill.empty() ? c10::ArrayRef<double>(&black, 1) : fill, image.size(0), "images.window", "fill");
  return image.scalar_type() == at::kByte ? padded<uint8_t>(image, box, mode, values)
                                          : padded<float>(image, box, mode, values);
}

Tensor horizontal_flip(const Tensor& image) {
  check_image(image, "images.horizontal_flip");
  return image.scalar_type() == at::kByte ? mirrored<uint8_t>(image) : mirrored<float>(image);
}

Tensor vertical_flip(const Tensor& image) {
  check_image(image, "images.vertical_flip");
  return image.scalar_type() == at::kByte ? upside_down<uint8_t>(image) : upside_down<float>(image);
}

}  // namespace fulgur::images
