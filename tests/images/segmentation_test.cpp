// Images and their masks: what moves the one moves the other.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <png.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/images/decode_image.h"
#include "fulgur/images/segmentation_data_module.h"
#include "fulgur/trainer/yaml.h"
#include "images/image_support.h"
#include "support/expect_error.h"

// Last: LibTorch defines its own CHECK.
#include <catch2/generators/catch_generators.hpp>

namespace segmentation_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

/// A PNG of values (H, W) uint8: grey, or places in a palette of `colours` colours.
void write_png(const fs::path& path, const Tensor& values, int colours = 0) {
  fs::create_directories(path.parent_path());
  const Tensor plain = values.to(at::kByte).contiguous();
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(plain.size(1));
  png.height = static_cast<png_uint_32>(plain.size(0));
  png.format = colours > 0 ? PNG_FORMAT_RGB_COLORMAP : PNG_FORMAT_GRAY;
  png.colormap_entries = static_cast<png_uint_32>(colours);
  std::vector<uint8_t> colormap;
  for (int i = 0; i < 3 * colours; ++i) colormap.push_back(static_cast<uint8_t>(200 - 7 * i));
  REQUIRE(png_image_write_to_file(&png, path.c_str(), 0, plain.const_data_ptr(), 0, colormap.data()) != 0);
}

std::vector<Spec<ImageTransform>> transforms_of(const std::string& yaml) {
  Problems problems;
  const ConfigNode node = parse_yaml("transforms: " + yaml, "test", problems);
  std::vector<Spec<ImageTransform>> specs;
  FieldTraits<std::vector<Spec<ImageTransform>>>::read(*node.find("transforms"), specs, problems, "transforms");
  problems.throw_if_any();
  return specs;
}

/// Eight images of 12 x 16 pixels with four classes, whose values are 60 times the class.
struct Pairs {
  TemporaryFolder folder;
  SegmentationFolderDataModule::Options options;
  Pairs() {
    for (int i = 0; i < 8; ++i) {
      const std::string name = (i < 4 ? "a/" : "b/") + std::to_string(i) + ".png";
      write_png(folder / "images" / name, mask(i) * 60);
      write_png(folder / "masks" / name, mask(i));
    }
    options.train_images = folder / "images";
    options.train_masks = folder / "masks";
    options.num_classes = 4;
    options.channels = 1;
    options.batch_size = 8;
    options.split.val_fraction = 0;
  }
  static Tensor mask(int64_t i) { return at::arange(12 * 16).mul(i + 3).floor_divide(5).remainder(4).view({12, 16}); }
  std::unique_ptr<SegmentationFolderDataModule> made(TrainerFn fn = TrainerFn::fit) const {
    auto data = std::make_unique<SegmentationFolderDataModule>(options);
    data->setup(fn);
    return data;
  }
};

Batch batch_of(DataModule& data, RunningStage stage, int64_t epoch = 0) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(epoch);
  Batch batch;
  const bool has_batch = loaders[0]->next(batch);  // it may throw
  REQUIRE(has_batch);
  return batch;
}

}  // namespace

TEST_CASE("transforms move a mask as they move its image; pixels from outside have no class") {
  const std::string transforms = GENERATE(
      as<std::string>(), "[RandomHorizontalFlip, RandomVerticalFlip]",
      "[{class_path: RandomCrop, init_args: {size: 10, padding: 3}}]",
      "[{class_path: RandomRotation, init_args: {degrees: 40}}]",
      "[{class_path: RandomAffine, init_args: {degrees: 20, translate: [0.2, 0.1], scale: [0.7, 1.4], shear: 10}}]",
      "[{class_path: RandomResizedCrop, init_args: {size: 9, interpolation: nearest, antialias: false}}]",
      "[{class_path: Resize, init_args: {size: [7, 21], interpolation: nearest, antialias: false}}, "
      "{class_path: CenterCrop, init_args: {size: 9}}, {class_path: Pad, init_args: {padding: 2}}]");
  CAPTURE(transforms);
  Pairs pairs;
  pairs.options.transforms = transforms_of(transforms);
  const auto data = pairs.made();
  Tensor before;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    const Batch batch = batch_of(*data, RunningStage::train, epoch);
    const Tensor image = batch["image"].squeeze(1).to(at::kLong), mask = batch["mask"];
    REQUIRE(mask.scalar_type() == at::kLong);
    REQUIRE(mask.sizes() == image.sizes());
    // The transforms fill images with 0.
    CHECK(at::equal(image, at::where(mask.eq(-100), at::full({}, 0, at::kLong), mask * 60)));
    CHECK(mask.ge(0).any().item<bool>());
    if (before.defined()) CHECK_FALSE(at::equal(before, mask));  // the epochs differ, at least by their order
    before = mask.clone();
  }
  CHECK(at::equal(batch_of(*pairs.made(), RunningStage::train, 3)["mask"], before));
}

TEST_CASE("colours change no mask, and a transform that says nothing about masks is refused") {
  Pairs pairs;
  pairs.options.shuffle = false;
  pairs.options.transforms = transforms_of(
      "[{class_path: GaussianBlur, init_args: {kernel_size: 3}}, {class_path: Cutout, init_args: {length: 4}}, "
      "ToFloat]");
  const Batch batch = batch_of(*pairs.made(), RunningStage::train);
  CHECK(batch["image"].scalar_type() == at::kFloat);
  for (int64_t i = 0; i < 8; ++i) CHECK(at::equal(batch["mask"][i], Pairs::mask(i)));
  pairs.options.transforms = transforms_of("[RandAugment]");
  CHECK_THAT(message_of<ConfigError>([&] { SegmentationFolderDataModule data(pairs.options); }),
             ContainsSubstring("must say what happens to the mask") && ContainsSubstring("It is RandAugment."));
}

TEST_CASE("values of masks become classes: palettes, grey of few bits, other values, ignored ones") {
  Pairs pairs;
  pairs.options.shuffle = false;
  const fs::path first = pairs.folder / "masks/a/0.png";
  const auto mask = [&] { return batch_of(*pairs.made(), RunningStage::train)["mask"][0]; };
  // libpng stores palettes of 4 colours in 2 bits, and of 20 in 8.
  for (const int colours : {4, 20}) {
    write_png(first, Pairs::mask(0), colours);
    CHECK(at::equal(mask(), Pairs::mask(0)));
  }
  write_png(first, at::where(Pairs::mask(0).eq(2), at::full({}, 255, at::kLong), Pairs::mask(0)));
  CHECK(at::equal(mask(), at::where(Pairs::mask(0).eq(2), at::full({}, -100, at::kLong), Pairs::mask(0))));
  write_png(first, Pairs::mask(0) + 7);
  CHECK_THAT(message_of<DataError>(mask), ContainsSubstring("0.png has the value 7") &&
                                              ContainsSubstring("num_classes, mask_values or ignored_values"));
  for (int i = 0; i < 8; ++i)
    write_png(pairs.folder / "masks" / ((i < 4 ? "a/" : "b/") + std::to_string(i) + ".png"),
              Pairs::mask(i).remainder(2) * 255);
  pairs.options.num_classes = 2;
  pairs.options.mask_values = {0, 255};
  CHECK(at::equal(mask(), Pairs::mask(0).remainder(2)));
}

TEST_CASE("training masks of a single class are refused, such as binary masks whose 255 is ignored") {
  Pairs pairs;
  const auto write_masks = [&](auto values_of) {
    for (int i = 0; i < 8; ++i)
      write_png(pairs.folder / "masks" / ((i < 4 ? "a/" : "b/") + std::to_string(i) + ".png"), values_of(i));
  };
  const auto error = [&] { return message_of<DataError>([&] { pairs.made(); }); };
  pairs.options.num_classes = 2;
  write_masks([](int i) { return Pairs::mask(i).remainder(2) * 255; });
  for (const std::vector<int64_t>& mask_values : {std::vector<int64_t>{}, std::vector<int64_t>{0, 1}}) {
    pairs.options.mask_values = mask_values;
    CHECK_THAT(error(), ContainsSubstring("pixels of at least two classes") &&
                            ContainsSubstring("masks have only the value 0 and ignored pixels (values 255)") &&
                            ContainsSubstring("Set mask_values"));
  }
  CHECK_NOTHROW(pairs.made(TrainerFn::predict));  // no training masks are needed
  pairs.options.mask_values = {0, 255};
  CHECK(batch_of(*pairs.made(), RunningStage::train)["mask"].eq(1).any().item<bool>());
  pairs.options.mask_values = {};
  write_masks([](int) { return at::full({12, 16}, 1, at::kLong); });
  CHECK_THAT(error(), ContainsSubstring("have only the value 1. Set"));
  write_masks([](int) { return at::full({12, 16}, 255, at::kLong); });
  CHECK_THAT(error(), ContainsSubstring("have only ignored pixels (values 255)"));
  // One mask with a second class, wherever it is, suffices; a pixel without a class is named with its file later.
  write_masks([](int i) { return at::full({12, 16}, i == 5 ? 1 : 0, at::kLong); });
  CHECK_NOTHROW(pairs.made());
  write_masks([](int i) { return at::full({12, 16}, i == 2 ? 9 : 0, at::kLong); });
  CHECK_THAT(message_of<DataError>([&] { batch_of(*pairs.made(), RunningStage::train); }),
             ContainsSubstring("2.png has the value 9"));
}

TEST_CASE("masks that are missing, of another size or with colours are named") {
  Pairs pairs;
  const fs::path first = pairs.folder / "masks/a/0.png";
  const auto error = [&] {
    return message_of<DataError>([&] {
      pairs.options.shuffle = false;
      batch_of(*pairs.made(), RunningStage::train);
    });
  };
  write_png(first, Pairs::mask(0).narrow(0, 0, 5));
  CHECK_THAT(error(), ContainsSubstring("has 5 x 16, the image 12 x 16") && !ContainsSubstring("EXIF"));
  write_png(first, Pairs::mask(0).t());
  CHECK_THAT(error(),
             ContainsSubstring("has 16 x 12, the image 12 x 16") && ContainsSubstring("set exif_orientation to false"));
  write_png(first, Pairs::mask(0));
  fs::copy_file(pairs.folder / "images/a/1.png", pairs.folder / "images/a/0.jpg");
  CHECK_THAT(error(), ContainsSubstring("images/a/0.jpg and ") && ContainsSubstring("images/a/0.png would both have") &&
                          ContainsSubstring("masks/a/0.png"));
  fs::remove(pairs.folder / "images/a/0.jpg");
  fs::remove(first);
  fs::copy_file(image_fixture("colour.png"), first);
  CHECK_THAT(error(), ContainsSubstring("must be grey or have a palette"));
  fs::remove(first);
  CHECK_THAT(error(), ContainsSubstring("1 of 8 images in") && ContainsSubstring("masks/a/0.png") &&
                          ContainsSubstring("mask_suffix"));
  const auto refused = [&](auto change) {
    auto options = pairs.options;
    change(options);
    return message_of<ConfigError>([&] { SegmentationFolderDataModule data(options); });
  };
  CHECK_THAT(refused([](auto& o) { o.classes = {"a"}; }), ContainsSubstring("a name for each of the 4 classes"));
  CHECK_THAT(refused([](auto& o) { o.mask_values = {0, 1}; }), ContainsSubstring("a value for each of the 4 classes"));
  CHECK_THAT(refused([](auto& o) { o.ignored_values = {256}; }),
             ContainsSubstring("ignored_values must be in [0, 255]"));
  CHECK_THAT(refused([&](auto& o) { o.val_images = o.train_images; }), ContainsSubstring("given together"));
}

TEST_CASE("an image of another size is named, with the transforms that make the sizes equal") {
  Pairs pairs;
  pairs.options.shuffle = false;
  pairs.options.split.val_fraction = 0.5;
  for (const char* part : {"images", "masks"})
    for (int i = 1; i < 8; ++i)
      write_png(pairs.folder / part / ((i < 4 ? "a/" : "b/") + std::to_string(i) + ".png"),
                Pairs::mask(i).narrow(0, 0, 12 - i));
  const auto error = [&](RunningStage stage) { return message_of<DataError>([&] { batch_of(*pairs.made(), stage); }); };
  CHECK_THAT(error(RunningStage::train), ContainsSubstring(". The file is " + (pairs.folder / "images").string()) &&
                                             ContainsSubstring("add Resize with height and width ({size: [H, W]}), "
                                                               "CenterCrop or RandomResizedCrop to transforms."));
  CHECK_THAT(error(RunningStage::validate), ContainsSubstring("or RandomResizedCrop to eval_transforms."));
  pairs.options.transforms = transforms_of("[{class_path: Resize, init_args: {size: [8, 8]}}]");
  CHECK(batch_of(*pairs.made(), RunningStage::train)["image"].size(2) == 8);
}

TEST_CASE("parts of the images, other folders, and images without masks serve the stages") {
  Pairs pairs;
  pairs.options.split = {.val_fraction = 0.25, .test_fraction = 0.25};
  pairs.options.classes = {"sky", "road", "car", "tree"};
  const auto data = pairs.made();
  CHECK(batch_of(*data, RunningStage::train).size() == 4);
  CHECK(batch_of(*data, RunningStage::validate).size() == 2);
  CHECK(data->loaders(RunningStage::test).empty());  // before its setup
  data->setup(TrainerFn::predict);
  const Batch predicted = batch_of(*data, RunningStage::predict);
  CHECK(predicted.strings("file").size() == 2);
  CHECK(predicted.contains("mask"));
  const StateTree values = data->exported_values();
  CHECK(values.at("num_classes").as_int() == 4);
  CHECK(values.at("classes").as_list()[2].as_string() == "car");
  CHECK(values.at("channels").as_int() == 1);
  CHECK(values.at("height").as_int() == 12);
  CHECK(values.at("width").as_int() == 16);

  for (int i = 0; i < 3; ++i) {
    write_png(pairs.folder / "other" / (std::to_string(i) + ".png"), Pairs::mask(i));
    write_png(pairs.folder / "other_masks" / (std::to_string(i) + "_mask.png"), Pairs::mask(i));
    fs::rename(pairs.folder / "masks" / "a" / (std::to_string(i) + ".png"),
               pairs.folder / "masks" / "a" / (std::to_string(i) + "_mask.png"));
  }
  for (int i = 3; i < 8; ++i) {
    const std::string name = (i < 4 ? "a/" : "b/") + std::to_string(i);
    fs::rename(pairs.folder / "masks" / (name + ".png"), pairs.folder / "masks" / (name + "_mask.png"));
  }
  pairs.options.mask_suffix = "_mask";
  pairs.options.val_images = pairs.options.test_images = pairs.options.predict_images = pairs.folder / "other";
  pairs.options.val_masks = pairs.options.test_masks = pairs.folder / "other_masks";
  const auto other = pairs.made();
  CHECK(batch_of(*other, RunningStage::train).size() == 8);
  CHECK(at::equal(batch_of(*other, RunningStage::validate)["mask"][2], Pairs::mask(2)));
  other->setup(TrainerFn::predict);
  const Batch images = batch_of(*other, RunningStage::predict);
  CHECK_FALSE(images.contains("mask"));
  CHECK(images.strings("file")[1] == (pairs.folder / "other/1.png").string());
}

}  // namespace segmentation_test
