#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"
#include "kernels/taps.h"

namespace fulgur::images {
namespace {

constexpr int kFraction = 6;  // bits of a value between the two sums, beside the 8 of a level
constexpr int32_t kWhite = 255 << kFraction;

// out[i] = sum of weights[k] · rows[k][i] in 64ths of a level.
FULGUR_VECTORIZED void sum_rows(const uint8_t* const* rows, const int16_t* weights, int64_t count, int bits,
                                int32_t* sums, int16_t* out, int64_t length) {
  const int shift = bits - kFraction;
  const int32_t half = 1 << (shift - 1);
  for (int64_t i = 0; i < length; ++i) sums[i] = half;
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const uint8_t *a = rows[k], *b = rows[k + 1], *c = rows[k + 2], *d = rows[k + 3];
    const int16_t wa = weights[k], wb = weights[k + 1], wc = weights[k + 2], wd = weights[k + 3];
    for (int64_t i = 0; i < length; ++i)
      sums[i] += static_cast<int16_t>(a[i]) * wa + static_cast<int16_t>(b[i]) * wb + static_cast<int16_t>(c[i]) * wc +
                 static_cast<int16_t>(d[i]) * wd;
  }
  for (; k < count; ++k) {
    const uint8_t* a = rows[k];
    const int16_t wa = weights[k];
    for (int64_t i = 0; i < length; ++i) sums[i] += static_cast<int16_t>(a[i]) * wa;
  }
  for (int64_t i = 0; i < length; ++i) out[i] = static_cast<int16_t>(sums[i] >> shift);
}

// sums[i] = sum of weights[i][k] · row[first[i] + k]; `count` is a multiple of 8.
void sum_columns(const int16_t* row, const int32_t* first, const int16_t* weights, int64_t count, int32_t* sums,
                 int64_t outputs) {
  int64_t i = 0;
#if defined(__SSE2__)
  // Four at once: g++ adds up the parts of each sum alone, which takes longer than the products.
  const auto products = [&](int64_t output) {
    const int16_t *from = row + first[output], *weight = weights + output * count;
    __m128i sum = _mm_setzero_si128();
    for (int64_t k = 0; k < count; k += 8)
      sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k)),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight + k))));
    return sum;
  };
  const auto halves = [](__m128i a, __m128i b) {
    return _mm_add_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
  };
  for (; i + 4 <= outputs; i += 4) {
    const __m128i a = halves(products(i), products(i + 1)), b = halves(products(i + 2), products(i + 3));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + i),
                     _mm_add_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)));
  }
#endif
  for (; i < outputs; ++i) {
    const int16_t *from = row + first[i], *weight = weights + i * count;
    int32_t sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += static_cast<int32_t>(from[k]) * weight[k];
    sums[i] = sum;
  }
}

// Sums whose unit is 2^-shift of a level, as levels.
FULGUR_VECTORIZED void round_to_levels(const int32_t* sums, int shift, uint8_t* out, int64_t count) {
  const int32_t half = 1 << (shift - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t level = (sums[i] + half) >> shift;
    out[i] = static_cast<uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
  }
}

// The same in 64ths of a level, between black and white.
FULGUR_VECTORIZED void round_to_64ths(const int32_t* sums, int shift, int16_t* out, int64_t count) {
  const int32_t half = 1 << (shift - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t value = (sums[i] + half) >> shift;
    out[i] = static_cast<int16_t>(value < 0 ? 0 : value > kWhite ? kWhite : value);
  }
}

FULGUR_VECTORIZED void take_channel(const int16_t* interleaved, int64_t channels, int16_t* out, int64_t length) {
  for (int64_t i = 0; i < length; ++i) out[i] = interleaved[i * channels];
}

// sums[i] = sum of weights[k] · rows[k][i], rows one after the other.
FULGUR_VECTORIZED void sum_rows_of_64ths(const int16_t* rows, int64_t width, const int16_t* weights, int64_t count,
                                         int32_t* sums) {
  for (int64_t i = 0; i < width; ++i) sums[i] = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int16_t* row = rows + k * width;
    const int16_t weight = weights[k];
    for (int64_t i = 0; i < width; ++i) sums[i] += static_cast<int32_t>(row[i]) * weight;
  }
}

// Reused by all images of a thread.
struct ResampleScratch {
  std::vector<const uint8_t*> rows;
  std::vector<int32_t> sums;
  std::vector<int16_t> interleaved, row, half_done;
  Taps down, across;
  std::vector<int32_t> row_places, column_places;
};

ResampleScratch& resample_scratch() {
  static thread_local ResampleScratch scratch;
  return scratch;
}

Tensor nearest_pixels(const Tensor& image, const Box& box, ImageSize size) {
  ResampleScratch& scratch = resample_scratch();
  nearest_places(box.height, size.height, scratch.row_places);
  nearest_places(box.width, size.width, scratch.column_places);
  Tensor out = new_image(image.size(0), size);
  uint8_t* to = out.data_ptr<uint8_t>();
  const int64_t step = image.stride(2);
  for (int64_t c = 0; c < image.size(0); ++c)
    for (const int32_t y : scratch.row_places) {
      const uint8_t* row =
          image.const_data_ptr<uint8_t>() + c * image.stride(0) + (box.top + y) * image.stride(1) + box.left * step;
      for (const int32_t x : scratch.column_places) *to++ = row[x * step];
    }
  return out;
}

// Sums along rows first, kept between black and white, as Pillow and LibTorch compute bicubic: where the sums
// overshoot, the order matters.
Tensor clamped_sums(const Tensor& source, const Box& box, const Taps& rows, const Taps& columns) {
  const int64_t channels = source.size(0), width = columns.outputs;
  ResampleScratch& scratch = resample_scratch();
  scratch.sums.resize(static_cast<size_t>(width));
  scratch.row.assign(static_cast<size_t>(box.width + columns.count), 0);
  scratch.half_done.resize(static_cast<size_t>(box.height * width));
  Tensor out = new_image(channels, {rows.outputs, width});
  uint8_t* to = out.data_ptr<uint8_t>();
  const int64_t step = source.stride(2);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = 0; y < box.height; ++y) {
      const uint8_t* from =
          source.const_data_ptr<uint8_t>() + c * source.stride(0) + (box.top + y) * source.stride(1) + box.left * step;
      for (int64_t x = 0; x < box.width; ++x) scratch.row[static_cast<size_t>(x)] = from[x * step];
      sum_columns(scratch.row.data(), columns.first.data(), columns.weights.data(), columns.count, scratch.sums.data(),
                  width);
      // The pixels of the file are whole levels.
      round_to_64ths(scratch.sums.data(), columns.bits - kFraction, scratch.half_done.data() + y * width, width);
    }
    for (int64_t y = 0; y < rows.outputs; ++y, to += width) {
      const auto i = static_cast<size_t>(y);
      sum_rows_of_64ths(scratch.half_done.data() + rows.first[i] * width, width, rows.weights.data() + y * rows.count,
                        rows.used[i], scratch.sums.data());
      round_to_levels(scratch.sums.data(), rows.bits + kFraction, to, width);
    }
  }
  return out;
}

}  // namespace

Tensor weighted_sums(const Tensor& source, const Box& box, const Taps& rows, const Taps& columns) {
  const int64_t channels = source.size(0);
  // The sums of the rows take interleaved pixels as they are.
  const bool interleaved = source.stride(0) == 1 && source.stride(2) == channels && channels > 1;
  const Tensor image = interleaved || source.stride(2) == 1 ? source : planar(source);
  const uint8_t* const data = image.const_data_ptr<uint8_t>() + box.top * image.stride(1) + box.left * image.stride(2);
  const int64_t row_stride = image.stride(1);

  ResampleScratch& scratch = resample_scratch();
  const int64_t length = interleaved ? box.width * channels : box.width;
  scratch.sums.resize(static_cast<size_t>(std::max(length, columns.outputs)));
  // The weights that fill up a tap are 0, but their pixels are read.
  scratch.row.assign(static_cast<size_t>(box.width + columns.count), 0);
  if (interleaved) scratch.interleaved.resize(static_cast<size_t>(length));

  Tensor out = new_image(channels, {rows.outputs, columns.outputs});
  uint8_t* const to = out.data_ptr<uint8_t>();
  const int64_t plane = rows.outputs * columns.outputs;
  for (int64_t y = 0; y < rows.outputs; ++y) {
    const auto i = static_cast<size_t>(y);
    const int16_t* const weights = rows.weights.data() + y * rows.count;
    scratch.rows.resize(static_cast<size_t>(rows.used[i]));
    const auto sum_from = [&](const uint8_t* base, int16_t* sums) {
      for (size_t k = 0; k < scratch.rows.size(); ++k)
        scratch.rows[k] = base + (rows.first[i] + static_cast<int64_t>(k)) * row_stride;
      sum_rows(scratch.rows.data(), weights, rows.used[i], rows.bits, scratch.sums.data(), sums, length);
    };
    if (interleaved) sum_from(data, scratch.interleaved.data());
    for (int64_t c = 0; c < channels; ++c) {
      if (interleaved)
        take_channel(scratch.interleaved.data() + c, channels, scratch.row.data(), box.width);
      else
        sum_from(data + c * image.stride(0), scratch.row.data());
      sum_columns(scratch.row.data(), columns.first.data(), columns.weights.data(), columns.count, scratch.sums.data(),
                  columns.outputs);
      round_to_levels(scratch.sums.data(), columns.bits + kFraction, to + c * plane + y * columns.outputs,
                      columns.outputs);
    }
  }
  return out;
}

Tensor resized_crop(const Tensor& image, const Box& box, ImageSize size, Interpolation interpolation, bool antialias) {
  check_uint8(image, "images.resize");
  check_inside(image, box, "images.resize");
  constexpr int64_t kMost = 1 << 16;
  if (size.height < 1 || size.width < 1 || size.height > kMost || size.width > kMost)
    throw DataError(cat("[images.resize] height and width of the result must be from 1 to ", kMost, "; got ",
                        size.height, " x ", size.width, " for an image of ", shape_text(image.sizes()), "."));
  if (size == ImageSize{box.height, box.width}) return window(image, box);
  if (interpolation == Interpolation::nearest) return nearest_pixels(image, box, size);
  ResampleScratch& scratch = resample_scratch();
  resize_taps(box.height, size.height, interpolation, antialias, scratch.down);
  resize_taps(box.width, size.width, interpolation, antialias, scratch.across);
  return interpolation == Interpolation::bicubic ? clamped_sums(image, box, scratch.down, scratch.across)
                                                 : weighted_sums(image, box, scratch.down, scratch.across);
}

Tensor resize(const Tensor& image, ImageSize size, Interpolation interpolation, bool antialias) {
  check_uint8(image, "images.resize");
  return resized_crop(image, {0, 0, image.size(1), image.size(2)}, size, interpolation, antialias);
}

}  // namespace fulgur::images
