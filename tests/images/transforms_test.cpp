// The transforms: what they draw, their options, and that nothing else changes a result.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "fulgur/core/text/errors.h"
#include "fulgur/images/auto_augment.h"
#include "fulgur/images/color_transforms.h"
#include "fulgur/images/erasing_transforms.h"
#include "fulgur/images/functional.h"
#include "fulgur/images/geometry_transforms.h"
#include "fulgur/images/image_batch_transforms.h"
#include "fulgur/images/tensor_transforms.h"
#include "images/transform_support.h"
#include "support/expect_error.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace transforms_test {

using namespace fulgur;
using namespace fulgur::images;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using test::applied;
using test::noise_image;
using test::transform_of;

namespace {

struct NamedTransform {
  const char* name;
  const char* options;
};

// Every transform, so that something happens.
const std::vector<NamedTransform>& all_transforms() {
  static const std::vector<NamedTransform> all = {
      {"CenterCrop", "{size: [20, 30]}"},
      {"ColorJitter", "{brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}"},
      {"Cutout", "{length: 8}"},
      {"GaussianBlur", "{kernel_size: 5}"},
      {"Grayscale", "{num_output_channels: 3}"},
      {"Normalize", "{mean: [0.4, 0.5, 0.6], std: 0.2}"},
      {"Pad", "{padding: 2}"},
      {"RandAugment", "{}"},
      {"RandomAffine", "{degrees: 20, translate: [0.1, 0.2], scale: [0.8, 1.2], shear: [-5, 5, -3, 3]}"},
      {"RandomCrop", "{size: 24, padding: 4}"},
      {"RandomErasing", "{p: 0.7}"},
      {"RandomGrayscale", "{p: 0.5}"},
      {"RandomHorizontalFlip", "{}"},
      {"RandomResizedCrop", "{size: 16}"},
      {"RandomRotation", "{degrees: 45}"},
      {"RandomVerticalFlip", "{}"},
      {"Resize", "{size: 15}"},
      {"ToFloat", "{}"},
      {"TrivialAugmentWide", "{}"},
  };
  return all;
}

bool is_fixed(const std::string& name) {
  static const std::set<std::string> fixed = {"CenterCrop", "Grayscale", "Normalize", "Pad", "Resize", "ToFloat"};
  return fixed.contains(name);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("every transform of this component can be named in a config, and is tested here") {
  for (const auto& [name, options] : all_transforms()) {
    INFO(name);
    CHECK(transform_of(name, options) != nullptr);
    CHECK(component_registry("image_transform").find(name) != nullptr);
  }
}

TEST_CASE("a sample is a function of seed, epoch and index, in any order and on any thread") {
  const Tensor image = noise_image(3, 32, 28);
  const Tensor before = image.clone();
  constexpr int64_t kSamples = 40;
  for (const auto& [name, options] : all_transforms()) {
    INFO(name);
    const std::shared_ptr<ImageTransform> transform = transform_of(name, options);
    const auto sample = [&](uint64_t seed, int64_t epoch, int64_t index) {
      SplitMix64 random = transform_random({.seed = seed, .epoch = epoch}, index, 2);
      return transform->apply(image, random).clone();
    };
    std::vector<Tensor> forward, parallel(kSamples);
    for (int64_t i = 0; i < kSamples; ++i) forward.push_back(sample(7, 3, i));
    std::vector<std::thread> threads;
    for (int64_t part = 0; part < 4; ++part)
      threads.emplace_back([&, part] {
        for (int64_t i = kSamples - 1 - part; i >= 0; i -= 4) parallel[static_cast<size_t>(i)] = sample(7, 3, i);
      });
    for (std::thread& thread : threads) thread.join();
    int64_t same_epoch = 0, same_seed = 0, same_sample = 0;
    for (size_t i = 0; i < forward.size(); ++i) {
      REQUIRE(forward[i].equal(parallel[i]));
      same_epoch += forward[i].equal(sample(7, 4, static_cast<int64_t>(i)));
      same_seed += forward[i].equal(sample(8, 3, static_cast<int64_t>(i)));
      same_sample += forward[i].equal(forward[(i + 1) % forward.size()]);
    }
    CHECK((same_epoch == kSamples) == is_fixed(name));
    CHECK((same_seed == kSamples) == is_fixed(name));
    CHECK((same_sample == kSamples) == is_fixed(name));
    CHECK(image.equal(before));
  }
}

TEST_CASE("the random numbers of the places of a sample differ") {
  std::set<uint64_t> numbers;
  for (size_t place = 0; place < 5; ++place)
    for (int64_t index = 0; index < 5; ++index)
      for (int64_t epoch = 0; epoch < 5; ++epoch)
        numbers.insert(transform_random({.seed = 1, .epoch = epoch}, index, place).next());
  CHECK(numbers.size() == 125);
}

TEST_CASE("Resize: the shorter side, or both") {
  const Resize shorter({.size = 10});
  CHECK(shorter.target({20, 45}) == ImageSize{10, 22});  // cut, as torchvision does
  CHECK(shorter.target({45, 20}) == ImageSize{22, 10});
  CHECK(shorter.target({7, 7}) == ImageSize{10, 10});
  CHECK(applied(shorter, noise_image(3, 20, 45)).sizes() == at::IntArrayRef({3, 10, 22}));
  CHECK(applied(Resize({.size = {9, 4}}), noise_image(1, 20, 45)).sizes() == at::IntArrayRef({1, 9, 4}));
  const Tensor image = noise_image(3, 40, 40);
  const auto made = [&](const std::string& options) { return applied(*transform_of("Resize", options), image); };
  CHECK(made("{size: 10}").equal(resize(image, {10, 10}, Interpolation::bilinear, true)));
  CHECK(made("{size: 10, antialias: false}").equal(resize(image, {10, 10}, Interpolation::bilinear, false)));
  CHECK(made("{size: 10, interpolation: bicubic}").equal(resize(image, {10, 10}, Interpolation::bicubic, true)));
  CHECK_FALSE(made("{size: 10}").equal(made("{size: 10, antialias: false}")));
}

TEST_CASE("RandomResizedCrop: areas, ratios and places are uniform, and boxes are inside") {
  const RandomResizedCrop crop({.size = 224});
  SplitMix64 random(5);
  std::vector<double> areas, ratios, tops;
  for (int i = 0; i < 4000; ++i) {
    const ImageSize size{400, 500};
    const Box box = crop.draw_box(size, random);
    REQUIRE((box.top >= 0 && box.left >= 0 && box.top + box.height <= 400 && box.left + box.width <= 500));
    areas.push_back(static_cast<double>(box.height * box.width) / (400.0 * 500.0));
    ratios.push_back(std::log(static_cast<double>(box.width) / static_cast<double>(box.height)));
    if (box.height < 400) tops.push_back(static_cast<double>(box.top) / static_cast<double>(400 - box.height));
  }
  const auto [least_area, most_area] = std::minmax_element(areas.begin(), areas.end());
  const auto [least_ratio, most_ratio] = std::minmax_element(ratios.begin(), ratios.end());
  CHECK(*least_area >= 0.079);
  CHECK(*least_area < 0.09);
  CHECK(*most_area <= 1);
  CHECK(*most_area > 0.9);
  CHECK(*least_ratio >= std::log(0.75) - 0.02);
  CHECK(*most_ratio <= std::log(4.0 / 3) + 0.02);
  // Means of torchvision's RandomResizedCrop.get_params over 20000 draws; large areas fit with few ratios.
  CHECK(mean_of(areas) == Approx(0.452).margin(0.015));
  CHECK(mean_of(ratios) == Approx(0.028).margin(0.015));
  CHECK(mean_of(tops) == Approx(0.5).margin(0.03));
}

TEST_CASE("RandomResizedCrop: without a fitting part it takes the largest one in the middle") {
  const RandomResizedCrop crop({.size = 8, .scale = {1, 1}, .ratio = {0.5, 2}});
  SplitMix64 random(1);
  CHECK(crop.draw_box({10, 100}, random) == Box{0, 40, 10, 20});
  CHECK(crop.draw_box({100, 10}, random) == Box{40, 0, 20, 10});
  const RandomResizedCrop never({.size = 8, .scale = {5, 6}});
  CHECK(never.draw_box({30, 33}, random) == Box{0, 0, 30, 33});
  CHECK(applied(never, noise_image(3, 1, 1)).sizes() == at::IntArrayRef({3, 8, 8}));
}

TEST_CASE("RandomResizedCrop: enough says how small a JPEG may be decoded, and the box scales with the image") {
  const RandomResizedCrop crop({.size = {96, 112}});
  const ImageSize file{1200, 1600};
  int64_t smaller = 0, same_part = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const std::optional<ImageSize> enough = crop.enough(file, SplitMix64(seed));
    SplitMix64 random(seed);
    const Box box = crop.draw_box(file, random);
    if (!enough) {
      CHECK((box.height < 98 || box.width < 114));
      continue;
    }
    // As libjpeg scales: by 1/8 to 8/8, rounded up.
    for (int64_t eighths = 1; eighths <= 8; ++eighths) {
      const ImageSize decoded{(file.height * eighths + 7) / 8, (file.width * eighths + 7) / 8};
      if (decoded.height < enough->height || decoded.width < enough->width) continue;
      SplitMix64 again(seed);
      const Box part = crop.draw_box(decoded, again);
      const double scale = static_cast<double>(eighths) / 8;
      const auto near = [&](int64_t got, int64_t of_file) {
        return std::abs(static_cast<double>(got) - static_cast<double>(of_file) * scale) <= 1.6;
      };
      same_part += near(part.top, box.top) && near(part.left, box.left) && near(part.height, box.height) &&
                   near(part.width, box.width);
      CHECK(part.height >= 96);
      CHECK(part.width >= 112);
      ++smaller;
      break;
    }
  }
  CHECK(smaller > 250);
  // A part that just fits into one size may just not fit into the other.
  CHECK(same_part >= smaller - 3);
  CHECK_FALSE(RandomResizedCrop({.size = 8, .interpolation = Interpolation::nearest}).enough(file, SplitMix64(1)));
  CHECK_FALSE(RandomResizedCrop({.size = 8, .antialias = false}).enough(file, SplitMix64(1)));
  CHECK_FALSE(crop.enough({50, 60}, SplitMix64(1)));
  CHECK_FALSE(Resize({.size = 8}).enough(file, SplitMix64(1)));
}

TEST_CASE("RandomResizedCrop: the result is the resized box") {
  const Tensor image = noise_image(3, 50, 60);
  const auto check = [&](const RandomResizedCrop& crop, Interpolation interpolation, bool antialias) {
    SplitMix64 random(9);
    const Box box = crop.draw_box({50, 60}, random);
    CHECK(applied(crop, image, 9).equal(resized_crop(image, box, {12, 14}, interpolation, antialias)));
  };
  check(RandomResizedCrop({.size = {12, 14}}), Interpolation::bilinear, true);
  check(RandomResizedCrop({.size = {12, 14}, .interpolation = Interpolation::bicubic}), Interpolation::bicubic, true);
  check(RandomResizedCrop({.size = {12, 14}, .antialias = false}), Interpolation::bilinear, false);
}

TEST_CASE("RandomCrop: every place is equally likely, and padding has its mode and fill") {
  const RandomCrop crop({.size = 3, .padding = 1});
  std::map<std::pair<int, int>, int> places;
  SplitMix64 random(2);
  for (int i = 0; i < 9000; ++i) {
    float row[2];
    crop.draw({3, 3}, random, row);
    ++places[{static_cast<int>(row[0]), static_cast<int>(row[1])}];
  }
  REQUIRE(places.size() == 9);
  for (const auto& [place, count] : places) {
    CHECK(std::abs(place.first) <= 1);
    CHECK(count == Approx(1000).margin(150));
  }
  const Tensor image = noise_image(3, 6, 7);
  const auto made = [&](const std::string& options, uint64_t seed) {
    return applied(*transform_of("RandomCrop", options), image, seed);
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomCrop drawn({.size = {6, 7}, .padding = {3, 2}});
    SplitMix64 numbers(seed);
    float row[2];
    drawn.draw({6, 7}, numbers, row);
    const Box box{static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), 6, 7};
    CHECK(std::abs(row[0]) <= 2);
    CHECK(std::abs(row[1]) <= 3);
    CHECK(made("{size: [6, 7], padding: [3, 2]}", seed).equal(window(image, box)));
    CHECK(
        made("{size: [6, 7], padding: [3, 2], fill: 9}", seed).equal(window(image, box, PaddingMode::constant, {9.0})));
    CHECK(made("{size: [6, 7], padding: [3, 2], padding_mode: reflect}", seed)
              .equal(window(image, box, PaddingMode::reflect)));
    CHECK(
        made("{size: [6, 7], padding: [3, 2], padding_mode: edge}", seed).equal(window(image, box, PaddingMode::edge)));
  }
  CHECK_THAT(test::message_of<DataError>([&] { made("{size: 8}", 1); }), ContainsSubstring("6 x 7, the part 8 x 8"));
}

TEST_CASE("flips happen with their probability and are their own inverse") {
  const Tensor image = noise_image(3, 9, 12);
  for (const char* name : {"RandomHorizontalFlip", "RandomVerticalFlip"}) {
    INFO(name);
    const auto count = [&](const std::string& options) {
      const auto transform = transform_of(name, options);
      int64_t flipped = 0;
      for (uint64_t seed = 0; seed < 2000; ++seed) flipped += !applied(*transform, image, seed).equal(image);
      return flipped;
    };
    CHECK(count("{p: 0}") == 0);
    CHECK(count("{p: 1}") == 2000);
    CHECK(count("{p: 0.25}") == Approx(500).margin(80));
    const auto always = transform_of(name, "{p: 1}");
    CHECK(applied(*always, applied(*always, image)).equal(image));
  }
  CHECK(horizontal_flip(image).equal(image.flip({2})));
  CHECK(vertical_flip(image).equal(image.flip({1})));
  const Tensor real = image.to(at::kFloat);
  CHECK(horizontal_flip(real).equal(real.flip({2})));
}

TEST_CASE("RandomRotation and RandomAffine draw from their ranges") {
  const RandomAffine affine_transform(
      {.degrees = {10, 20}, .translate = {0.1, 0.5}, .scale = {0.5, 2}, .shear = {-5, 5, 1, 3}});
  SplitMix64 random(4);
  std::vector<double> angles, xs, ys, scales, shears;
  for (int i = 0; i < 3000; ++i) {
    const AffineParameters by = affine_transform.draw_parameters({40, 100}, random);
    angles.push_back(by.angle), xs.push_back(by.translate_x), ys.push_back(by.translate_y);
    scales.push_back(by.scale), shears.push_back(by.shear_x);
    REQUIRE((by.angle >= 10 && by.angle <= 20 && std::abs(by.translate_x) <= 10 && std::abs(by.translate_y) <= 20));
    REQUIRE((by.scale >= 0.5 && by.scale <= 2 && std::abs(by.shear_x) <= 5 && by.shear_y >= 1 && by.shear_y <= 3));
    REQUIRE(by.translate_x == std::round(by.translate_x));
  }
  CHECK(mean_of(angles) == Approx(15).margin(0.3));
  CHECK(mean_of(xs) == Approx(0).margin(0.6));
  CHECK(mean_of(ys) == Approx(0).margin(1.2));
  CHECK(mean_of(scales) == Approx(1.25).margin(0.05));
  CHECK(mean_of(shears) == Approx(0).margin(0.3));
  CHECK(*std::max_element(ys.begin(), ys.end()) >= 19);

  const Tensor image = noise_image(3, 20, 20);
  const RandomRotation fixed({.degrees = {90, 90}});
  CHECK(applied(fixed, image).equal(image.rot90(1, {1, 2})));
  const auto made = [&](const std::string& options) {
    return applied(*transform_of("RandomRotation", options), image, 3);
  };
  CHECK(made("{degrees: 0}").equal(image));
  CHECK(made("{degrees: [30, 30]}").equal(rotate(image, 30, Interpolation::nearest, {0.0})));
  CHECK(made("{degrees: [30, 30], interpolation: bilinear, fill: [1, 2, 3]}")
            .equal(rotate(image, 30, Interpolation::bilinear, {1.0, 2.0, 3.0})));
  const RandomAffine moved({.degrees = 0, .translate = {0.5, 0}, .fill = 50.0});
  SplitMix64 numbers(3);
  const AffineParameters by = moved.draw_parameters({20, 20}, numbers);
  REQUIRE(std::abs(by.translate_x) >= 1);
  CHECK(applied(moved, image, 3).equal(affine(image, by, Interpolation::nearest, {50.0})));
  CHECK_FALSE(applied(moved, image, 3).equal(affine(image, by, Interpolation::nearest, {0.0})));
  CHECK(applied(*transform_of("RandomAffine", "{degrees: 0, interpolation: bilinear}"), image, 3).equal(image));
}

TEST_CASE("ColorJitter: factors from their ranges, in each order equally often") {
  const ColorJitter jitter({.brightness = 0.4, .contrast = 0.2, .saturation = 1.5, .hue = 0.1});
  SplitMix64 random(6);
  std::map<int, int> orders;
  std::vector<double> brightness, saturation, hue;
  for (int i = 0; i < 4800; ++i) {
    float row[8];
    jitter.draw({4, 4}, random, row);
    ++orders[static_cast<int>(row[0] * 1000 + row[1] * 100 + row[2] * 10 + row[3])];
    brightness.push_back(static_cast<double>(row[4]));
    saturation.push_back(static_cast<double>(row[6]));
    hue.push_back(static_cast<double>(row[7]));
    REQUIRE((row[4] >= 0.6F && row[4] <= 1.4F && row[5] >= 0.8F && row[5] <= 1.2F));
    REQUIRE((row[6] >= 0 && row[6] <= 2.5F && std::abs(row[7]) <= 0.1F));
  }
  CHECK(orders.size() == 24);
  for (const auto& [order, count] : orders) CHECK(count == Approx(200).margin(65));
  CHECK(mean_of(brightness) == Approx(1).margin(0.02));
  CHECK(mean_of(saturation) == Approx(1.25).margin(0.05));
  CHECK(mean_of(hue) == Approx(0).margin(0.005));

  // Each option alone is its operation.
  const Tensor image = noise_image(3, 10, 11);
  using Adjust = Tensor (*)(const Tensor&, double);
  const std::vector<std::tuple<const char*, size_t, Adjust>> alone = {{"{brightness: 0.5}", 4, adjust_brightness},
                                                                      {"{contrast: 0.5}", 5, adjust_contrast},
                                                                      {"{saturation: 0.5}", 6, adjust_saturation},
                                                                      {"{hue: 0.5}", 7, adjust_hue}};
  for (const auto& [options, place, adjust] : alone) {
    INFO(options);
    const auto transform = std::dynamic_pointer_cast<ColorJitter>(transform_of("ColorJitter", options));
    SplitMix64 numbers(1);
    float row[8];
    transform->draw({10, 11}, numbers, row);
    CHECK(applied(*transform, image).equal(adjust(image, static_cast<double>(row[place]))));
    CHECK_FALSE(applied(*transform, image).equal(image));
  }
  CHECK(applied(ColorJitter(ColorJitter::Options{}), image).equal(image));
}

TEST_CASE("Grayscale, RandomGrayscale and GaussianBlur follow their options") {
  const Tensor image = noise_image(3, 12, 13);
  CHECK(applied(*transform_of("Grayscale"), image).size(0) == 1);
  CHECK(applied(*transform_of("Grayscale", "{num_output_channels: 3}"), image).equal(to_grayscale(image, 3)));
  const auto gray = transform_of("RandomGrayscale", "{p: 0.3}");
  int64_t without_color = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed)
    without_color += applied(*gray, image, seed).equal(to_grayscale(image, 3));
  CHECK(without_color == Approx(300).margin(60));
  CHECK(applied(*transform_of("GaussianBlur", "{kernel_size: 5, sigma: [1.5, 1.5]}"), image)
            .equal(gaussian_blur(image, 5, 1.5)));
  CHECK(applied(*transform_of("GaussianBlur", "{kernel_size: 5, p: 0}"), image).equal(image));
  const auto blur = transform_of("GaussianBlur", "{kernel_size: 5}");
  CHECK_FALSE(applied(*blur, image, 1).equal(applied(*blur, image, 2)));
}

TEST_CASE("Cutout and RandomErasing hide boxes of their size, with their value and probability") {
  const Tensor image = at::full({3, 32, 32}, 200, at::TensorOptions().dtype(at::kByte));
  const Cutout cutout({.length = 8, .value = 7.0});
  int64_t whole = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto hidden = applied(cutout, image, seed).eq(7).sum().item<int64_t>();
    REQUIRE((hidden >= 3 * 16 && hidden <= 3 * 64));
    whole += hidden == 3 * 64;
  }
  // The middle must have 4 pixels before it and 3 behind it.
  CHECK(static_cast<double>(whole) / 500 == Approx(25.0 * 25 / (32 * 32)).margin(0.08));
  CHECK(applied(*transform_of("Cutout", "{length: 8, p: 0}"), image).equal(image));
  CHECK(applied(*transform_of("Cutout", "{length: 64, value: [1, 2, 3]}"), image)[2].eq(3).all().item<bool>());

  const auto erasing = transform_of("RandomErasing", "{p: 0.4, scale: [0.1, 0.2], ratio: [0.5, 2], value: [5, 6, 7]}");
  int64_t erased = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Tensor result = applied(*erasing, image, seed);
    const auto hidden = static_cast<double>(result[1].eq(6).sum().item<int64_t>()) / (32 * 32);
    if (hidden == 0) continue;
    ++erased;
    REQUIRE((hidden > 0.08 && hidden < 0.23));
    REQUIRE(result[0].eq(5).equal(result[2].eq(7)));
  }
  CHECK(erased == Approx(400).margin(60));
  const Tensor real = image.to(at::kFloat);
  CHECK(applied(*transform_of("RandomErasing", "{p: 1, value: -0.5}"), real).eq(-0.5).any().item<bool>());
}

TEST_CASE("RandAugment applies its number of operations with its magnitude, fill and interpolation") {
  const Tensor image = noise_image(3, 30, 30);
  const auto made = [&](const std::string& options, uint64_t seed) {
    return applied(*transform_of("RandAugment", options), image, seed);
  };
  CHECK(made("{num_ops: 0}", 1).equal(image));
  // The draws of one operation: which it is, and its sign.
  const RandAugment rand({.num_ops = 1});
  std::map<int64_t, int> counts;
  int64_t negative = 0, with_sign = 0;
  for (uint64_t seed = 0; seed < 1400; ++seed) {
    SplitMix64 random(seed);
    const auto operation = static_cast<int64_t>(random.below(kAugmentOperations));
    ++counts[operation];
    double magnitude = rand.magnitude_of(static_cast<AugmentOperation>(operation), {30, 30});
    if (operation >= 1 && operation <= 9) {
      ++with_sign;
      if (random.uniform() < 0.5) magnitude = -magnitude, ++negative;
    }
    if (seed < 100)
      REQUIRE(made("{num_ops: 1}", seed)
                  .equal(augment(image, static_cast<AugmentOperation>(operation), magnitude, Interpolation::nearest,
                                 {0.0})));
  }
  CHECK(counts.size() == static_cast<size_t>(kAugmentOperations));
  for (const auto& [operation, count] : counts) CHECK(count == Approx(100).margin(45));
  CHECK(static_cast<double>(negative) / static_cast<double>(with_sign) == Approx(0.5).margin(0.06));
  const auto differs = [&](const std::string& a, const std::string& b) {
    for (uint64_t seed = 0; seed < 40; ++seed)
      if (!made(a, seed).equal(made(b, seed))) return true;
    return false;
  };
  CHECK(differs("{}", "{magnitude: 20}"));
  CHECK(differs("{}", "{num_ops: 3}"));
  CHECK(differs("{}", "{num_magnitude_bins: 15}"));
  CHECK(differs("{}", "{interpolation: bilinear}"));
  CHECK(differs("{}", "{fill: 128}"));
  const auto trivial_differs = [&](const std::string& options) {
    const auto one = transform_of("TrivialAugmentWide"), other = transform_of("TrivialAugmentWide", options);
    for (uint64_t seed = 0; seed < 40; ++seed)
      if (!applied(*one, image, seed).equal(applied(*other, image, seed))) return true;
    return false;
  };
  CHECK(trivial_differs("{num_magnitude_bins: 15}"));
  CHECK(trivial_differs("{interpolation: bilinear}"));
  CHECK(trivial_differs("{fill: 128}"));
}

TEST_CASE("Normalize of bytes is ToFloat and then Normalize, bit for bit") {
  const Tensor image = noise_image(3, 16, 16);
  const auto normalize_all = transform_of("Normalize", "{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}");
  const Tensor real = applied(*transform_of("ToFloat"), image);
  CHECK(real.equal(image.to(at::kFloat).div(255)));
  CHECK(applied(*normalize_all, image).equal(applied(*normalize_all, real)));
  CHECK(applied(*transform_of("Normalize", "{mean: 0.5, std: 0.25}"), image).equal(real.sub(0.5).div(0.25)));
}

TEST_CASE("options out of range are config errors that name the option") {
  for (const auto& [name, options, says] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"Resize", "{size: []}", "size"},
           {"Resize", "{size: 0}", "size"},
           {"Resize", "{}", "size"},
           {"Resize", "{size: [1, 2, 3]}", "size"},
           {"Resize", "{size: 8, interpolation: lanczos}", "bicubic"},
           {"CenterCrop", "{size: -3}", "size"},
           {"Pad", "{padding: [1, 2, 3]}", "padding"},
           {"Pad", "{padding: -1}", "padding"},
           {"RandomCrop", "{size: 8, padding_mode: symmetric}", "reflect"},
           {"RandomCrop", "{size: 8, fill: []}", "fill"},
           {"RandomHorizontalFlip", "{p: 1.5}", "p"},
           {"RandomResizedCrop", "{size: 8, scale: [0.5, 0.1]}", "scale"},
           {"RandomResizedCrop", "{size: 8, ratio: [0, 1]}", "ratio"},
           {"RandomResizedCrop", "{size: 8, scale: [0.5]}", "scale"},
           {"RandomRotation", "{degrees: -5}", "degrees"},
           {"RandomRotation", "{degrees: 5, interpolation: bicubic}", "bilinear"},
           {"RandomAffine", "{degrees: 5, scale: [0, 1]}", "scale"},
           {"RandomAffine", "{degrees: 5, shear: 90}", "shear"},
           {"RandomAffine", "{degrees: 5, translate: [0, 2]}", "translate"},
           {"ColorJitter", "{hue: 0.6}", "hue"},
           {"ColorJitter", "{brightness: -1}", "brightness"},
           {"Grayscale", "{num_output_channels: 2}", "num_output_channels"},
           {"GaussianBlur", "{kernel_size: 4}", "odd"},
           {"GaussianBlur", "{kernel_size: 5, sigma: [0, 1]}", "sigma"},
           {"RandAugment", "{magnitude: 31}", "magnitude"},
           {"RandAugment", "{interpolation: bicubic}", "bilinear"},
           {"TrivialAugmentWide", "{num_magnitude_bins: 1}", "num_magnitude_bins"},
           {"Cutout", "{length: 0}", "length"},
           {"RandomErasing", "{scale: [0.3, 1.2]}", "scale"},
           {"RandomErasing", "{ratio: [-1, 2]}", "ratio"},
           {"Normalize", "{mean: 0.5, std: 0}", "std"},
           {"Normalize", "{mean: [], std: 1}", "mean"}}) {
    INFO(name << " " << options);
    const std::string made_name = name, made_options = options;
    CHECK_THAT(test::message_of<ConfigError>([&] { transform_of(made_name, made_options); }), ContainsSubstring(says));
  }
  // Options from C++ are checked too.
  CHECK_THROWS_AS(RandomHorizontalFlip({.p = 2}), ConfigError);
  CHECK_THROWS_AS(Cutout({.length = -1}), ConfigError);
}

}  // namespace transforms_test
