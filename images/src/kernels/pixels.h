#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "fulgur/images/functional.h"

// Loops over bytes are compiled for AVX2 too, and the processor decides at run time. AVX2 without FMA: float results do
// not depend on the processor. Sanitizers cannot start while such functions are resolved.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FULGUR_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define FULGUR_VECTORIZED
#endif

namespace fulgur::images {

inline ImageSize size_of(const Tensor& image) { return {image.size(1), image.size(2)}; }

/// Throws a DataError unless `image` is (C, H, W) with at least one pixel, and a ConfigError unless it is uint8 or
/// float32 on the CPU. `who` begins the message, as in `images.Pad`.
void check_image(const Tensor& image, const char* who);
/// Also throws a ConfigError unless the image is uint8.
void check_uint8(const Tensor& image, const char* who);
/// Also throws a DataError unless it has 1 or 3 channels.
void check_colors(const Tensor& image, const char* who);
/// Throws a DataError unless `box` has pixels and is inside the image.
void check_inside(const Tensor& image, const Box& box, const char* who);

/// The image in planes, one row after the other: itself if it is so already.
Tensor planar(const Tensor& image);
/// An uninitialised image in planes.
Tensor new_image(int64_t channels, ImageSize size, at::ScalarType dtype = at::kByte);

/// One value per channel. Throws a ConfigError unless there are 1 or `channels` values.
std::vector<double> per_channel(c10::ArrayRef<double> values, int64_t channels, const char* who, const char* option);

/// NaN gives 0.
inline float clamp_pixel(float value) { return value > 0 ? (value < 255 ? value : 255.0F) : 0.0F; }

/// A fill value as a pixel; those that uint8 cannot hold are clamped.
template <class T>
T fill_pixel(double value) {
  if constexpr (std::is_same_v<T, uint8_t>)
    return static_cast<uint8_t>(clamp_pixel(static_cast<float>(value)));
  else
    return static_cast<T>(value);
}

}  // namespace fulgur::images
