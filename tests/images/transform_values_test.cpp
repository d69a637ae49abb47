// Operations on images of which fixtures/make_transform_values.py knows the result: torchvision's.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/images/auto_augment.h"
#include "fulgur/images/functional.h"
#include "fulgur/images/geometry_transforms.h"
#include "images/transform_support.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

namespace transform_values_test {

using namespace fulgur;
using namespace fulgur::images;
using nlohmann::json;

namespace {

const json& values() {
  static const json values = [] {
    std::ifstream file(FULGUR_TRANSFORM_VALUES);
    return json::parse(file);
  }();
  return values;
}

Tensor image_of(const json& shape, const json& bytes) {
  const auto text = bytes.get<std::string>();
  Tensor image = at::empty(shape.get<std::vector<int64_t>>(), at::TensorOptions().dtype(at::kByte));
  REQUIRE(static_cast<int64_t>(text.size()) == 2 * image.numel());
  for (int64_t i = 0; i < image.numel(); ++i)
    image.data_ptr<uint8_t>()[i] =
        static_cast<uint8_t>(std::stoi(text.substr(static_cast<size_t>(2 * i), 2), nullptr, 16));
  return image;
}

// The same image with the channels of a pixel side by side.
Tensor interleaved(const Tensor& image) { return image.permute({1, 2, 0}).contiguous().permute({2, 0, 1}); }

std::vector<double> numbers(const json& list) { return list.get<std::vector<double>>(); }

Box box_of(const json& list) {
  const auto at = list.get<std::vector<int64_t>>();
  return {at.at(0), at.at(1), at.at(2), at.at(3)};
}

ImageSize size_of_pair(const json& list) {
  const auto at = list.get<std::vector<int64_t>>();
  return {at.at(0), at.at(1)};
}

template <class E>
E named(const json& text) {
  const auto value = enum_from<E>(text.get<std::string>());
  REQUIRE(value.has_value());
  return *value;
}

AffineParameters affine_of(const json& with) {
  AffineParameters by;
  by.angle = with.at("angle").get<double>();
  by.translate_x = with.at("translate").at(0).get<double>();
  by.translate_y = with.at("translate").at(1).get<double>();
  by.scale = with.at("scale").get<double>();
  by.shear_x = with.at("shear").at(0).get<double>();
  by.shear_y = with.at("shear").at(1).get<double>();
  by.around_corner = with.at("corner").get<bool>();
  return by;
}

Tensor center_crop(const Tensor& image, const json& size) {
  const auto at = size.get<std::vector<int64_t>>();
  const CenterCrop crop({.size = {at.at(0), at.at(1)}});
  return test::applied(crop, image);
}

Tensor pad(const Tensor& image, const json& with) {
  OneOrMore<int64_t> padding;
  padding.values = with.at("padding").get<std::vector<int64_t>>();
  OneOrMore<double> fill;
  fill.values = numbers(with.at("fill"));
  const Pad transform({.padding = padding, .padding_mode = named<PaddingMode>(with.at("mode")), .fill = fill});
  return test::applied(transform, image);
}

using Operation = Tensor (*)(const Tensor&, const json&);

const std::map<std::string, Operation>& operations() {
  static const std::map<std::string, Operation> all = {
      {"resize",
       [](const Tensor& image, const json& with) {
         return resize(image, size_of_pair(with.at("size")), named<Interpolation>(with.at("interpolation")),
                       with.at("antialias").get<bool>());
       }},
      {"resized_crop",
       [](const Tensor& image, const json& with) {
         return resized_crop(image, box_of(with.at("box")), size_of_pair(with.at("size")),
                             named<Interpolation>(with.at("interpolation")), with.at("antialias").get<bool>());
       }},
      {"center_crop", [](const Tensor& image, const json& with) { return center_crop(image, with.at("size")); }},
      {"pad", [](const Tensor& image, const json& with) { return pad(image, with); }},
      {"horizontal_flip", [](const Tensor& image, const json&) { return horizontal_flip(image); }},
      {"vertical_flip", [](const Tensor& image, const json&) { return vertical_flip(image); }},
      {"rotate",
       [](const Tensor& image, const json& with) {
         return rotate(image, with.at("angle").get<double>(), named<Interpolation>(with.at("interpolation")),
                       numbers(with.at("fill")));
       }},
      {"affine",
       [](const Tensor& image, const json& with) {
         return affine(image, affine_of(with), named<Interpolation>(with.at("interpolation")));
       }},
      {"brightness",
       [](const Tensor& image, const json& with) { return adjust_brightness(image, with.at("factor").get<double>()); }},
      {"contrast",
       [](const Tensor& image, const json& with) { return adjust_contrast(image, with.at("factor").get<double>()); }},
      {"saturation",
       [](const Tensor& image, const json& with) { return adjust_saturation(image, with.at("factor").get<double>()); }},
      {"sharpness",
       [](const Tensor& image, const json& with) { return adjust_sharpness(image, with.at("factor").get<double>()); }},
      {"hue", [](const Tensor& image, const json& with) { return adjust_hue(image, with.at("factor").get<double>()); }},
      {"grayscale",
       [](const Tensor& image, const json& with) { return to_grayscale(image, with.at("channels").get<int64_t>()); }},
      {"blur",
       [](const Tensor& image, const json& with) {
         return gaussian_blur(image, with.at("kernel").get<int64_t>(), with.at("sigma").get<double>());
       }},
      {"invert", [](const Tensor& image, const json&) { return invert(image); }},
      {"posterize",
       [](const Tensor& image, const json& with) { return posterize(image, with.at("bits").get<int64_t>()); }},
      {"solarize",
       [](const Tensor& image, const json& with) { return solarize(image, with.at("threshold").get<double>()); }},
      {"autocontrast", [](const Tensor& image, const json&) { return autocontrast(image); }},
      {"equalize", [](const Tensor& image, const json&) { return equalize(image); }},
      {"erase", [](const Tensor& image,
                   const json& with) { return erase(image, box_of(with.at("box")), numbers(with.at("fill"))); }},
      {"to_float", [](const Tensor& image, const json&) { return to_float(image); }},
      {"normalize",
       [](const Tensor& image, const json& with) {
         return normalize(image, numbers(with.at("mean")), numbers(with.at("std")));
       }},
  };
  return all;
}

void check_levels(const Tensor& result, const json& item) {
  const Tensor expected = image_of(item.at("shape"), item.at("bytes"));
  const Tensor difference = (result.to(at::kInt) - expected.to(at::kInt)).abs();
  const auto largest = difference.max().item<int64_t>();
  if (!item.at("rare").get<bool>()) {
    CHECK(largest <= item.at("most").get<int64_t>());
    return;
  }
  CHECK(largest <= 1);
  CHECK(difference.gt(0).sum().item<int64_t>() * 100 <= difference.numel());
}

}  // namespace

TEST_CASE("operations on images have the values of torchvision, for planes and for interleaved pixels") {
  std::map<std::string, Tensor> images;
  for (const auto& [name, image] : values().at("images").items())
    images[name] = image_of(image.at("shape"), image.at("bytes"));
  std::set<std::string> seen;
  for (const json& item : values().at("cases")) {
    const auto operation = item.at("operation").get<std::string>();
    const auto name = item.at("image").get<std::string>();
    INFO(operation << " of " << name << " with " << item.at("parameters").dump());
    seen.insert(operation);
    const Tensor image = images.at(name);
    const Tensor before = image.clone();
    const Tensor result = operations().at(operation)(image, item.at("parameters"));
    REQUIRE(result.sizes().vec() == item.at("shape").get<std::vector<int64_t>>());
    if (item.contains("floats")) {
      CHECK(result.scalar_type() == at::kFloat);
      // torchvision computes the same operations in the same order.
      CHECK(result.flatten().equal(at::tensor(item.at("floats").get<std::vector<float>>())));
    } else {
      CHECK(result.scalar_type() == at::kByte);
      check_levels(result, item);
    }
    CHECK(image.equal(before));
    CHECK(operations().at(operation)(interleaved(image), item.at("parameters")).equal(result));
    // A view into a larger image, as a crop makes it.
    const Tensor inside =
        window(window(image, {-2, -3, image.size(1) + 4, image.size(2) + 5}), {2, 3, image.size(1), image.size(2)});
    CHECK_FALSE(inside.is_contiguous());
    CHECK(operations().at(operation)(inside, item.at("parameters")).equal(result));
  }
  CHECK(seen.size() == operations().size());
}

TEST_CASE("RandAugment and TrivialAugmentWide have torchvision's magnitudes") {
  const json& spaces = values().at("magnitudes");
  for (int64_t bin = 0; bin < 31; ++bin) {
    const RandAugment rand({.magnitude = bin});
    const TrivialAugmentWide trivial({});
    for (int64_t i = 0; i < kAugmentOperations; ++i) {
      const auto at = static_cast<size_t>(i), place = static_cast<size_t>(bin);
      const auto operation = static_cast<AugmentOperation>(i);
      INFO("operation " << i << ", bin " << bin);
      // The fixtures have four decimal places.
      CHECK(rand.magnitude_of(operation, {40, 53}) ==
            Catch::Approx(spaces.at("RandAugment").at(at).at(place).get<double>()).margin(6e-5));
      CHECK(trivial.magnitude_of(operation, bin) ==
            Catch::Approx(spaces.at("TrivialAugmentWide").at(at).at(place).get<double>()).margin(6e-5));
    }
  }
}

}  // namespace transform_values_test
