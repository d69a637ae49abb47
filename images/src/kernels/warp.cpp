#include <array>
#include <cmath>
#include <numbers>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// From a pixel of the result to the place in the image that it shows, both from the middle:
// x' = m[0] x + m[1] y + m[2], y' = m[3] x + m[4] y + m[5].
using InverseMap = std::array<double, 6>;

double radians(double degrees) { return degrees * std::numbers::pi / 180; }

// torchvision's _get_inverse_affine_matrix.
InverseMap inverse_map(double angle, double center_x, double center_y, const AffineParameters& by) {
  const double turn = radians(angle), sx = radians(by.shear_x), sy = radians(by.shear_y);
  const double a = std::cos(turn - sy) / std::cos(sy);
  const double b = -std::cos(turn - sy) * std::tan(sx) / std::cos(sy) - std::sin(turn);
  const double c = std::sin(turn - sy) / std::cos(sy);
  const double d = -std::sin(turn - sy) * std::tan(sx) / std::cos(sy) + std::cos(turn);
  InverseMap m = {d / by.scale, -b / by.scale, 0, -c / by.scale, a / by.scale, 0};
  const double x = -center_x - by.translate_x, y = -center_y - by.translate_y;
  m[2] = m[0] * x + m[1] * y + center_x;
  m[5] = m[3] * x + m[4] * y + center_y;
  return m;
}

// Half goes to even, as std::nearbyint, which is slow without SSE 4.1.
int64_t nearest_integer(double x) {
  constexpr double kShift = 6755399441055744;  // 1.5 · 2^52
  return static_cast<int64_t>((x + kShift) - kShift);
}

struct WarpPlane {
  const uint8_t* from;
  uint8_t* to;
  float fill;
};

void nearest_row(const std::vector<WarpPlane>& planes, int64_t y, ImageSize size, const InverseMap& m, double x0,
                 double y0) {
  for (int64_t x = 0; x < size.width; ++x) {
    const double at = static_cast<double>(x);
    const double px = x0 + m[0] * at, py = y0 + m[3] * at;
    // Compared as doubles first: a far place does not fit into an integer.
    const bool inside = px >= -0.5 && py >= -0.5 && px <= static_cast<double>(size.width) - 0.5 &&
                        py <= static_cast<double>(size.height) - 0.5;
    const int64_t ix = inside ? nearest_integer(px) : -1, iy = inside ? nearest_integer(py) : -1;
    const bool shows = ix >= 0 && iy >= 0 && ix < size.width && iy < size.height;
    for (const WarpPlane& plane : planes)
      plane.to[y * size.width + x] = shows ? plane.from[iy * size.width + ix] : static_cast<uint8_t>(plane.fill);
  }
}

void bilinear_row(const std::vector<WarpPlane>& planes, int64_t y, ImageSize size, const InverseMap& m, double x0,
                  double y0, bool has_fill) {
  for (int64_t x = 0; x < size.width; ++x) {
    const double at = static_cast<double>(x);
    const double px = x0 + m[0] * at, py = y0 + m[3] * at;
    const int64_t to = y * size.width + x;
    if (!(px > -1 && py > -1 && px < static_cast<double>(size.width) && py < static_cast<double>(size.height))) {
      for (const WarpPlane& plane : planes) plane.to[to] = static_cast<uint8_t>(plane.fill);
      continue;
    }
    // std::floor is slow without SSE 4.1; the places are greater than -1.
    const int64_t ix = static_cast<int64_t>(px + 1) - 1, iy = static_cast<int64_t>(py + 1) - 1;
    const auto tx = static_cast<float>(px - static_cast<double>(ix));
    const auto ty = static_cast<float>(py - static_cast<double>(iy));
    const bool left = ix >= 0, right = ix + 1 < size.width, top = iy >= 0, bottom = iy + 1 < size.height;
    const float w00 = top && left ? (1 - tx) * (1 - ty) : 0, w01 = top && right ? tx * (1 - ty) : 0;
    const float w10 = bottom && left ? (1 - tx) * ty : 0, w11 = bottom && right ? tx * ty : 0;
    // Pixels outside have no weight; any pixel inside stands for them.
    const int64_t x_left = left ? ix : 0, x_right = right ? ix + 1 : ix, y_top = top ? iy : 0,
                  y_bottom = bottom ? iy + 1 : iy;
    const float mask = w00 + w01 + w10 + w11;
    for (const WarpPlane& plane : planes) {
      const uint8_t *upper = plane.from + y_top * size.width, *lower = plane.from + y_bottom * size.width;
      float value = static_cast<float>(upper[x_left]) * w00 + static_cast<float>(upper[x_right]) * w01 +
                    static_cast<float>(lower[x_left]) * w10 + static_cast<float>(lower[x_right]) * w11;
      if (has_fill) value = (value - plane.fill) * mask + plane.fill;
      plane.to[to] = static_cast<uint8_t>(clamp_pixel(value + 0.5F));
    }
  }
}

Tensor warped(const Tensor& image, const InverseMap& m, Interpolation interpolation, c10::ArrayRef<double> fill) {
  if (interpolation == Interpolation::bicubic)
    throw ConfigError("[images.affine] interpolation must be nearest or bilinear; got bicubic.");
  for (const double number : m)
    if (!std::isfinite(number))
      throw ConfigError(
          "[images.affine] the parameters must give a finite map. The scale must not be 0, nor a shear 90 degrees.");
  const Tensor from = planar(image);
  const ImageSize size = size_of(from);
  const double black = 0;
  const auto fills =
      per_channel(fill.empty() ? c10::ArrayRef<double>(&black, 1) : fill, from.size(0), "images.affine", "fill");
  Tensor out = new_image(from.size(0), size);
  std::vector<WarpPlane> planes;
  for (int64_t c = 0; c < from.size(0); ++c)
    planes.push_back({from.const_data_ptr<uint8_t>() + c * size.height * size.width,
                      out.data_ptr<uint8_t>() + c * size.height * size.width,
                      static_cast<float>(fill_pixel<uint8_t>(fills[static_cast<size_t>(c)]))});
  const double half_x = static_cast<double>(size.width) / 2 - 0.5, half_y = static_cast<double>(size.height) / 2 - 0.5;
  for (int64_t y = 0; y < size.height; ++y) {
    const double from_middle = static_cast<double>(y) - half_y;
    const double x0 = m[1] * from_middle + m[2] - m[0] * half_x + half_x;
    const double y0 = m[4] * from_middle + m[5] - m[3] * half_x + half_y;
    if (interpolation == Interpolation::nearest)
      nearest_row(planes, y, size, m, x0, y0);
    else
      bilinear_row(planes, y, size, m, x0, y0, !fill.empty());
  }
  return out;
}

}  // namespace

Tensor affine(const Tensor& image, const AffineParameters& parameters, Interpolation interpolation,
              c10::ArrayRef<double> fill) {
  check_uint8(image, "images.affine");
  const double center_x = parameters.around_corner ? -static_cast<double>(image.size(2)) / 2 : 0;
  const double center_y = parameters.around_corner ? -static_cast<double>(image.size(1)) / 2 : 0;
  return warped(image, inverse_map(parameters.angle, center_x, center_y, parameters), interpolation, fill);
}

Tensor rotate(const Tensor& image, double angle, Interpolation interpolation, c10::ArrayRef<double> fill) {
  check_uint8(image, "images.rotate");
  return warped(image, inverse_map(-std::fmod(angle, 360.0), 0, 0, {}), interpolation, fill);
}

}  // namespace fulgur::images
