// Transforms of whole batches give what the transforms of single images give.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/images/erasing_transforms.h"
#include "fulgur/images/geometry_transforms.h"
#include "fulgur/images/image_batch_transforms.h"
#include "images/transform_support.h"
#include "support/device_counts.h"
#include "support/expect_error.h"
#include "support/gpu.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace batch_transforms_test {

using namespace fulgur;
using namespace fulgur::images;
using Catch::Matchers::ContainsSubstring;
using test::noise_image;
using test::transform_of;

namespace {

using Transforms = std::vector<std::shared_ptr<const ImageTransform>>;

constexpr int64_t kImages = 32;

Tensor noise_batch(int64_t channels, int64_t height, int64_t width) {
  std::vector<Tensor> images;
  for (int64_t i = 0; i < kImages; ++i)
    images.push_back(noise_image(channels, height, width, static_cast<uint64_t>(i) + 1));
  return at::stack(images);
}

Tensor drawn(const ImageBatchTransforms& transforms, const SampleContext& context) {
  Tensor rows = at::zeros({kImages, transforms.parameter_count()}, at::TensorOptions().dtype(at::kFloat));
  for (int64_t i = 0; i < kImages; ++i)
    transforms.draw(context, i, rows.data_ptr<float>() + i * transforms.parameter_count());
  return rows;
}

// The same list on a worker, with the same places.
Tensor one_by_one(const Transforms& transforms, const Tensor& images, const SampleContext& context,
                  size_t first_place) {
  std::vector<Tensor> results;
  for (int64_t i = 0; i < images.size(0); ++i) {
    Tensor image = images[i];
    for (size_t k = 0; k < transforms.size(); ++k) {
      SplitMix64 random = transform_random(context, i, first_place + k);
      image = transforms[k]->apply(image, random);
    }
    results.push_back(image);
  }
  return at::stack(results);
}

void check_equal(const Transforms& transforms, const Tensor& images) {
  const ImageBatchTransforms on_device(transforms, images.size(1), {images.size(2), images.size(3)}, 3);
  const Tensor before = images.clone();
  for (const int64_t epoch : {0, 1}) {
    const SampleContext context{.seed = 5, .epoch = epoch};
    const Tensor expected = one_by_one(transforms, images, context, 3);
    const Tensor result = on_device.apply(images, drawn(on_device, context));
    REQUIRE(result.sizes() == expected.sizes());
    CHECK(result.scalar_type() == expected.scalar_type());
    CHECK(result.equal(expected));
    CHECK(ImageSize{result.size(2), result.size(3)} == on_device.output_size());
    CHECK(images.equal(before));
    // The other layout of a run (`memory_format: channels_last`).
    CHECK(
        on_device.apply(images.contiguous(at::MemoryFormat::ChannelsLast), drawn(on_device, context)).equal(expected));
  }
}

}  // namespace

TEST_CASE("each transform gives on a batch exactly what it gives on single images") {
  struct Case {
    const char* name;
    const char* options;
    bool takes_floats;
  };
  for (const Case& one :
       std::vector<Case>{{"RandomCrop", "{size: 14, padding: 3}", true},
                         {"RandomCrop", "{size: [16, 11], padding: [1, 2, 3, 4], fill: [10, 20, 30]}", true},
                         {"RandomCrop", "{size: 18, padding: 5, padding_mode: reflect}", true},
                         {"RandomCrop", "{size: 18, padding: 5, padding_mode: edge}", true},
                         {"RandomCrop", "{size: 9}", true},
                         {"RandomHorizontalFlip", "{}", true},
                         {"RandomVerticalFlip", "{p: 0.3}", true},
                         {"Cutout", "{length: 7, value: [1, 2, 3]}", true},
                         {"Cutout", "{length: 6, p: 0.5}", true},
                         {"RandomErasing", "{p: 0.8, value: 99}", true},
                         {"ColorJitter", "{brightness: 0.5}", false},
                         {"ColorJitter", "{contrast: 0.7}", false},
                         {"ColorJitter", "{saturation: 1.4}", false},
                         {"ColorJitter", "{brightness: 0.4, contrast: 0.4, saturation: 0.4}", false},
                         {"ToFloat", "{}", true},
                         {"Normalize", "{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}", true},
                         {"Normalize", "{mean: 0.5, std: 0.2}", true}}) {
    INFO(one.name << " " << one.options);
    const Transforms transforms = {transform_of(one.name, one.options)};
    check_equal(transforms, noise_batch(3, 16, 15));
    if (one.takes_floats) check_equal(transforms, noise_batch(3, 16, 15).to(at::kFloat));
  }
  check_equal({transform_of("ColorJitter", "{brightness: 0.4, contrast: 0.4, saturation: 0.4}")}, noise_batch(1, 9, 8));
}

TEST_CASE("a list of transforms gives on a batch what it gives on single images") {
  check_equal({transform_of("ColorJitter", "{brightness: 0.3, contrast: 0.3, saturation: 0.3}"),
               transform_of("RandomCrop", "{size: 12, padding: 2}"), transform_of("RandomHorizontalFlip"),
               transform_of("Normalize", "{mean: 0.4, std: 0.2}"), transform_of("RandomErasing", "{p: 0.7}")},
              noise_batch(3, 16, 15));
}

TEST_CASE("parameters depend on seed, epoch and index alone") {
  const Transforms list = {transform_of("RandomCrop", "{size: 12, padding: 4}"), transform_of("RandomHorizontalFlip")};
  const ImageBatchTransforms transforms(list, 3, {12, 12}, 0);
  CHECK(transforms.parameter_count() == 3);
  const Tensor rows = drawn(transforms, {.seed = 1, .epoch = 2});
  CHECK(rows.equal(drawn(transforms, {.seed = 1, .epoch = 2})));
  CHECK_FALSE(rows.equal(drawn(transforms, {.seed = 1, .epoch = 3})));
  CHECK_FALSE(rows.equal(drawn(transforms, {.seed = 2, .epoch = 2})));
  float alone[3];
  transforms.draw({.seed = 1, .epoch = 2}, 17, alone);
  for (int64_t k = 0; k < 3; ++k) CHECK(rows[17][k].item<float>() == alone[k]);
  const ImageBatchTransforms later(list, 3, {12, 12}, 1);
  CHECK_FALSE(rows.equal(drawn(later, {.seed = 1, .epoch = 2})));
}

TEST_CASE("apply transforms the entry of a batch and removes the parameters") {
  const ImageBatchTransforms transforms({transform_of("RandomHorizontalFlip")}, 3, {8, 9}, 0);
  const Tensor images = noise_batch(3, 8, 9), labels = at::arange(kImages);
  const Tensor rows = drawn(transforms, {.seed = 3});
  const Batch result = transforms.apply(
      Batch{Batch::Entry{"image", images}, Batch::Entry{"label", labels}, Batch::Entry{"image.parameters", rows}});
  REQUIRE(result.entries() == 2);
  CHECK(result["image"].equal(transforms.apply(images, rows)));
  CHECK_FALSE(result["image"].equal(images));
  CHECK(result[1].equal(labels));
  CHECK(result.entry(0).first == "image");

  // Nothing is drawn, so the batch has no parameters.
  const ImageBatchTransforms fixed({transform_of("ToFloat")}, 3, {8, 9}, 0);
  CHECK(fixed.parameter_count() == 0);
  CHECK(fixed.apply(Batch{Batch::Entry{"image", images}})["image"].scalar_type() == at::kFloat);
  const ImageBatchTransforms none({}, 3, {8, 9}, 0);
  CHECK(none.empty());
  CHECK(none.apply(Batch{Batch::Entry{"image", images}})["image"].equal(images));

  CHECK_THROWS_AS(transforms.apply(Batch{Batch::Entry{"image", images}}), Error);
  CHECK_THAT(test::message_of<DataError>([&] { transforms.apply(images, rows.narrow(0, 0, 3)); }),
             ContainsSubstring("parameters must be float32 [32, 1]"));
  CHECK_THAT(test::message_of<DataError>([&] { transforms.apply(noise_batch(3, 9, 8), rows); }),
             ContainsSubstring("(N, 3, 8, 9)"));
}

TEST_CASE("transforms that cannot run on batches are named when the list is made") {
  const auto error = [](const char* name, const char* options, int64_t channels, ImageSize size) {
    return test::message_of<ConfigError>([&] {
      const ImageBatchTransforms made({transform_of(name, options)}, channels, size, 0);
      static_cast<void>(made);
    });
  };
  CHECK_THAT(error("RandomRotation", "{degrees: 5}", 3, {8, 8}), ContainsSubstring("RandomRotation"));
  CHECK_THAT(error("ColorJitter", "{hue: 0.1}", 3, {8, 8}), ContainsSubstring("hue must be 0"));
  CHECK_THAT(error("ColorJitter", "{}", 4, {8, 8}), ContainsSubstring("1 or 3 channels"));
  CHECK_THAT(error("RandomCrop", "{size: 9}", 3, {8, 8}), ContainsSubstring("8 x 8, the part 9 x 9"));
  CHECK_THAT(error("RandomCrop", "{size: 8, padding: 8, padding_mode: reflect}", 3, {8, 8}),
             ContainsSubstring("smaller than the image"));
  CHECK_THAT(error("Normalize", "{mean: [0.1, 0.2], std: 1}", 3, {8, 8}), ContainsSubstring("one per channel"));
  CHECK_THAT(error("Cutout", "{length: 3, value: [1, 2]}", 3, {8, 8}), ContainsSubstring("one per channel"));
  CHECK_THAT(error("RandomErasing", "{value: [1, 2]}", 3, {8, 8}), ContainsSubstring("one per channel"));
  const ImageBatchTransforms sizes(
      {transform_of("RandomCrop", "{size: 10, padding: 1}"), transform_of("RandomCrop", "{size: [10, 9]}")}, 3, {8, 8},
      0);
  CHECK(sizes.output_size() == ImageSize{10, 9});
  CHECK_THAT(test::message_of<ConfigError>([] {
               const ImageBatchTransforms made({nullptr}, 3, {8, 8}, 0);
               static_cast<void>(made);
             }),
             ContainsSubstring("null"));
}

TEST_CASE("on a GPU, a batch is transformed as on the CPU, and the host does not wait", "[gpu]") {
  test::require_gpus(1);
  const at::Device device(at::kCUDA, 0);
  const Transforms list = {transform_of("ColorJitter", "{brightness: 0.3, contrast: 0.3, saturation: 0.3}"),
                           transform_of("RandomCrop", "{size: 14, padding: 2, fill: [1, 2, 3]}"),
                           transform_of("RandomCrop", "{size: 14, padding: 2, padding_mode: reflect}"),
                           transform_of("RandomHorizontalFlip"),
                           transform_of("RandomVerticalFlip"),
                           transform_of("Cutout", "{length: 5, value: 128}"),
                           transform_of("Normalize", "{mean: [0.4, 0.5, 0.6], std: 0.2}"),
                           transform_of("RandomErasing", "{p: 0.5}")};
  const ImageBatchTransforms transforms(list, 3, {16, 15}, 0);
  const Tensor images = noise_batch(3, 16, 15), rows = drawn(transforms, {.seed = 2});
  const Tensor expected = transforms.apply(images, rows);
  const Tensor there = images.to(device), parameters = rows.to(device);
  const auto before = test::device_counts();
  const Tensor result = transforms.apply(there, parameters);
  const auto after = test::device_counts();
  if (before) {
    CHECK(after->waits == before->waits);
    CHECK(after->copies_to_device == before->copies_to_device);
    CHECK(after->copies_to_host == before->copies_to_host);
    CHECK(after->launches > before->launches);
  }
  CHECK(result.device() == device);
  // A GPU multiplies by 1 / 255.
  CHECK(result.to(at::kCPU).allclose(expected, 1e-5, 1e-5));
}

}  // namespace batch_transforms_test
