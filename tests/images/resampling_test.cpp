// Properties of resampling that hold for every size.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <array>
#include <cmath>
#include <limits>

#include "fulgur/core/text/errors.h"
#include "fulgur/images/functional.h"
#include "images/transform_support.h"
#include "support/expect_error.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace resampling_test {

using namespace fulgur;
using namespace fulgur::images;
using Catch::Matchers::ContainsSubstring;

namespace {

// What bilinear with antialiasing is, in doubles.
double mean_of_triangle(const Tensor& image, int64_t channel, double y, double x, double scale_y, double scale_x) {
  double sum = 0, weights = 0;
  for (int64_t i = 0; i < image.size(1); ++i)
    for (int64_t j = 0; j < image.size(2); ++j) {
      const double wy = 1 - std::abs((static_cast<double>(i) + 0.5 - y) / std::max(scale_y, 1.0));
      const double wx = 1 - std::abs((static_cast<double>(j) + 0.5 - x) / std::max(scale_x, 1.0));
      if (wy <= 0 || wx <= 0) continue;
      weights += wy * wx;
      sum += wy * wx * image.data_ptr<uint8_t>()[(channel * image.size(1) + i) * image.size(2) + j];
    }
  return sum / weights;
}

}  // namespace

TEST_CASE("resize with antialiasing is the weighted mean within 0.6 levels, for random sizes") {
  SplitMix64 random(3);
  double worst = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const auto draw = [&](uint64_t most) { return static_cast<int64_t>(1 + random.below(most)); };
    const Tensor image = test::noise_image(1 + 2 * (trial % 2), draw(60), draw(60), static_cast<uint64_t>(trial));
    const ImageSize size{draw(40), draw(40)};
    const Tensor result = resize(image, size, Interpolation::bilinear).contiguous();
    const double scale_y = static_cast<double>(image.size(1)) / static_cast<double>(size.height);
    const double scale_x = static_cast<double>(image.size(2)) / static_cast<double>(size.width);
    for (int probe = 0; probe < 20; ++probe) {
      const auto at = [&](int64_t count) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(count))); };
      const int64_t c = at(image.size(0)), y = at(size.height), x = at(size.width);
      const double expected = mean_of_triangle(image, c, (static_cast<double>(y) + 0.5) * scale_y,
                                               (static_cast<double>(x) + 0.5) * scale_x, scale_y, scale_x);
      const double got = result.data_ptr<uint8_t>()[(c * size.height + y) * size.width + x];
      worst = std::max(worst, std::abs(got - expected));
    }
  }
  CHECK(worst <= 0.6);
  CHECK(worst > 0.3);  // the probes see roundings
}

TEST_CASE("an even image stays even, whatever the size, the mode and the level") {
  for (const int level : {0, 1, 93, 254, 255})
    for (const auto mode : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic})
      for (const bool antialias : {true, false})
        for (const ImageSize size : {ImageSize{1, 1}, ImageSize{13, 5}, ImageSize{200, 311}}) {
          const Tensor image = at::full({3, 37, 54}, level, at::TensorOptions().dtype(at::kByte));
          const Tensor result = resize(image, size, mode, antialias);
          INFO(level << " " << enum_text(mode) << " " << antialias << " " << size.height);
          CHECK(result.eq(level).all().item<bool>());
        }
}

TEST_CASE("extreme sizes are resampled: one row to many, and many to one") {
  const Tensor row = test::noise_image(3, 1, 5000);
  const Tensor one = resize(row, {1, 1}, Interpolation::bilinear);
  const double mean = row[0].to(at::kDouble).mean().item<double>();
  // A triangle over the whole row is no even mean.
  CHECK(std::abs(one[0][0][0].item<double>() - mean) < 6);
  CHECK(resize(row, {3000, 2}, Interpolation::bicubic).sizes() == at::IntArrayRef({3, 3000, 2}));
  CHECK(resize(test::noise_image(1, 1, 1), {65, 33}, Interpolation::bicubic, false).size(2) == 33);
}

TEST_CASE("bicubic does not overflow at edges between black and white") {
  Tensor image = at::full({1, 16, 16}, 0, at::TensorOptions().dtype(at::kByte));
  image.narrow(2, 8, 8).fill_(255);
  for (const bool antialias : {true, false})
    for (const int64_t width : {5, 15, 17, 40, 64}) {
      const Tensor result = resize(image, {16, width}, Interpolation::bicubic, antialias);
      INFO(width);
      CHECK(result.select(2, 0).eq(0).all().item<bool>());
      CHECK(result.select(2, width - 1).eq(255).all().item<bool>());
    }
}

TEST_CASE("images and boxes that cannot be taken are errors that say why") {
  const Tensor image = test::noise_image(3, 8, 9);
  CHECK_THAT(test::message_of<DataError>([&] {
               resize(image, {0, 4}, Interpolation::bilinear);
             }),
             ContainsSubstring("must be from 1 to"));
  CHECK_THAT(test::message_of<DataError>([&] {
               resize(image, {4, 1 << 20}, Interpolation::bilinear);
             }),
             ContainsSubstring("must be from 1 to"));
  CHECK_THAT(test::message_of<DataError>([&] {
               resized_crop(image, {5, 0, 4, 4}, {2, 2}, Interpolation::bilinear);
             }),
             ContainsSubstring("inside the image"));
  CHECK_THAT(test::message_of<ConfigError>([&] {
               resize(image.to(at::kFloat), {4, 4}, Interpolation::bilinear);
             }),
             ContainsSubstring("before ToFloat"));
  CHECK_THAT(test::message_of<ConfigError>([&] { horizontal_flip(image.to(at::kDouble)); }),
             ContainsSubstring("uint8 or float32"));
  CHECK_THAT(test::message_of<DataError>([&] { horizontal_flip(image[0]); }), ContainsSubstring("[8, 9]"));
  CHECK_THAT(test::message_of<DataError>([&] { adjust_hue(test::noise_image(4, 3, 3), 0.1); }),
             ContainsSubstring("1 or 3 channels"));
  CHECK_THAT(test::message_of<DataError>([&] {
               window(image, {-8, 0, 16, 9}, PaddingMode::reflect);
             }),
             ContainsSubstring("smaller than the image"));
  CHECK_THAT(test::message_of<DataError>([&] { gaussian_blur(test::noise_image(3, 4, 9), 9, 1); }),
             ContainsSubstring("half of kernel_size"));
  CHECK_THAT(test::message_of<ConfigError>([&] {
               normalize(image, {0.5, 0.5}, {1});
             }),
             ContainsSubstring("one per channel"));
  CHECK_THAT(test::message_of<ConfigError>([&] { rotate(image, 10, Interpolation::bicubic); }),
             ContainsSubstring("nearest or bilinear"));
  CHECK_THAT(test::message_of<ConfigError>(
                 [&] { affine(image, {.angle = std::numeric_limits<double>::quiet_NaN()}, Interpolation::nearest); }),
             ContainsSubstring("finite"));
  // Far outside, nothing is seen, and nothing overflows.
  const Tensor far = affine(image, {.translate_x = 1e15}, Interpolation::bilinear, std::array{7.0});
  CHECK(far.eq(7).all().item<bool>());
  CHECK(affine(image, {.translate_y = -1e300}, Interpolation::nearest).eq(0).all().item<bool>());
}

}  // namespace resampling_test
