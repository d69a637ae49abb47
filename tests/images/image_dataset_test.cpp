#include "fulgur/images/image_dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/collate.h"
#include "fulgur/data/data_loader.h"
#include "images/image_support.h"
#include "support/expect_error.h"

namespace image_dataset_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Fixtures of one size, as often as needed.
ImageList small_images(int64_t count) {
  const std::vector<std::string> names{"colour.png", "alpha.png", "grey.png", "interlaced.png", "palette.png"};
  ImageList list{.root = image_fixture(""), .files = {}, .labels = {}, .classes = {"0", "1", "2"}};
  for (int64_t i = 0; i < count; ++i) {
    list.files.push_back(names[static_cast<size_t>(i) % names.size()]);
    list.labels.push_back(i % 3);
  }
  return list;
}

std::shared_ptr<const ImageTransform> corner(bool random, int64_t size = 6) {
  return std::make_shared<TestCorner>(TestCorner::Options{.size = size, .random = random});
}

ImageDatasetOptions with_corner(bool random) {
  ImageDatasetOptions options;
  options.pipeline = ImagePipeline({corner(random)});
  return options;
}

DataLoaderOptions loading(int64_t workers) {
  DataLoaderOptions options;
  options.batch_size = 4;
  options.shuffle = true;
  options.num_workers = workers;
  return options;
}

class ToFloats : public ImageTransform {
 public:
  Tensor apply(const Tensor& image, SplitMix64&) const override { return image.to(at::kFloat) / 255; }
};

/// Says what it was given, and that a size is enough.
class Looks : public ImageTransform {
 public:
  Looks(std::vector<ImageSize>& seen, int64_t enough) : seen_(seen), enough_(enough) {}
  Tensor apply(const Tensor& image, SplitMix64&) const override {
    seen_.push_back({image.size(1), image.size(2)});
    return at::zeros({3, 2, 2}, at::kByte);
  }
  std::optional<ImageSize> enough(ImageSize, SplitMix64) const override { return ImageSize{enough_, enough_}; }

 private:
  std::vector<ImageSize>& seen_;
  int64_t enough_;
};

}  // namespace

TEST_CASE("a batch has images as uint8, labels, and files on request") {
  for (const bool with_file : {false, true}) {
    ImageDatasetOptions options;
    options.with_file = with_file;
    auto dataset = std::make_shared<ImageDataset>(small_images(5), options);
    const Batch prototype = dataset->prototype();
    CHECK(prototype.entries() == (with_file ? 3u : 2u));
    CHECK(prototype["image"].sizes() == at::IntArrayRef({1, 3, 14, 19}));
    CHECK(prototype["image"].scalar_type() == at::kByte);
    DataLoaderOptions how;
    how.batch_size = 5;
    DataLoader loader(dataset, how);
    const Epoch epoch = read_epoch(loader, 0);
    REQUIRE(epoch.images.size() == 5);
    for (size_t i = 0; i < 5; ++i)
      CHECK(epoch.images[i].equal(decode_image(small_images(5).path(static_cast<int64_t>(i)))));
    CHECK(numbers_of(epoch.labels) == std::vector<int64_t>{0, 1, 2, 0, 1});
    if (with_file) CHECK(epoch.files.at(1) == image_fixture("alpha.png").string());
  }
  ImageList unlabelled = small_images(5);
  unlabelled.labels.clear();
  CHECK(!ImageDataset(unlabelled).prototype().contains("label"));
  unlabelled.labels = {1, 2};
  CHECK_THROWS_AS(ImageDataset(unlabelled), DataError);
  CHECK(ImageDataset(ImageList{}).prototype().empty());
}

TEST_CASE("transforms give the same for any number of workers, of ranks and any batch") {
  const auto dataset = std::make_shared<ImageDataset>(small_images(23), with_corner(true));
  DataLoader alone(dataset, loading(0));
  alone.configure(11, 0, 1);
  const Epoch expected = read_epoch(alone, 2);
  CHECK(!equal_images(expected.images, read_epoch(alone, 3).images));
  for (const int64_t workers : {1, 3}) {
    DataLoader loader(dataset, loading(workers));
    loader.configure(11, 0, 1);
    CHECK(equal_images(read_epoch(loader, 2).images, expected.images));
  }
  for (int64_t rank = 0; rank < 2; ++rank) {
    DataLoader loader(dataset, loading(2));
    loader.configure(11, rank, 2);
    const Epoch part = read_epoch(loader, 2);
    for (size_t i = 0; i < part.images.size(); ++i)
      CHECK(part.images[i].equal(expected.images.at(2 * i + static_cast<size_t>(rank))));
  }
}

TEST_CASE("an epoch that is resumed inside has the rest of the uninterrupted one") {
  const auto dataset = std::make_shared<ImageDataset>(small_images(23), with_corner(true));
  DataLoader whole(dataset, loading(2));
  whole.configure(4, 0, 1);
  const Epoch expected = read_epoch(whole, 1);
  DataLoader first(dataset, loading(2));
  first.configure(4, 0, 1);
  first.start_epoch(1);
  Batch batch;
  REQUIRE(first.next(batch));
  REQUIRE(first.next(batch));
  DataLoader second(dataset, loading(0));
  second.configure(4, 0, 1);
  second.load_state(first.state());
  const Epoch rest = read_epoch(second, 1);
  CHECK(equal_images(rest.images, {expected.images.begin() + 8, expected.images.end()}));
  CHECK(numbers_of(rest.labels) == numbers_of({expected.labels.begin() + 8, expected.labels.end()}));
}

TEST_CASE("batches have the dtype of the last transform") {
  ImageDatasetOptions options;
  options.pipeline = ImagePipeline({corner(false), std::make_shared<ToFloats>()});
  const ImageDataset dataset(small_images(2), options);
  Batch out = dataset.prototype();
  CHECK(out["image"].scalar_type() == at::kFloat);
  CHECK(out["image"].sizes() == at::IntArrayRef({1, 3, 6, 6}));
  const int64_t index = 1;
  dataset.read(c10::ArrayRef<int64_t>(index), 0, out, {});
  const Tensor expected = decode_image(image_fixture("alpha.png")).narrow(1, 0, 6).narrow(2, 0, 6).to(at::kFloat) / 255;
  CHECK(out["image"][0].equal(expected));
}

TEST_CASE("the first image of another size is named, with what to do") {
  ImageList list = small_images(6);
  list.files[4] = "colour.jpg";
  for (const bool transformed : {false, true}) {
    ImageDatasetOptions options;
    if (transformed) options.pipeline = ImagePipeline({std::make_shared<ToFloats>()});
    // Bad samples may be skipped, images of another size not.
    options.on_bad_sample = OnBadSample::skip;
    DataLoaderOptions how;
    how.batch_size = 6;
    DataLoader loader(std::make_shared<ImageDataset>(list, options), how);
    loader.start_epoch(0);
    Batch batch;
    CHECK_THAT(message_of<DataError>([&] { loader.next(batch); }),
               ContainsSubstring("sample 4") && ContainsSubstring("colour.jpg") && ContainsSubstring("[3, 23, 37]") &&
                   ContainsSubstring("[3, 14, 19]") && ContainsSubstring("Resize") && ContainsSubstring("CenterCrop") &&
                   ContainsSubstring("RandomResizedCrop"));
    // A collate function takes any size.
    how.collate = collate::stack_all_but({"image"});
    DataLoader ragged(std::make_shared<ImageDataset>(list, options), how);
    ragged.start_epoch(0);
    REQUIRE(ragged.next(batch));
    CHECK(batch.list("image")[4].sizes() == at::IntArrayRef({3, 23, 37}));
    CHECK(batch["label"][4].item<int64_t>() == 1);
  }
}

TEST_CASE("a JPEG is decoded at the scale that is enough for the first transform") {
  ImageList list{.root = image_fixture(""), .files = {"large.jpg"}, .labels = {0}, .classes = {"0"}};
  const auto seen_with = [&](int64_t enough, bool scaled, int64_t cache_bytes) {
    std::vector<ImageSize> seen;
    ImageDatasetOptions options;
    options.pipeline = ImagePipeline({std::make_shared<Looks>(seen, enough)});
    options.scaled_decode = scaled;
    options.cache_bytes = cache_bytes;
    ImageDataset(list, options).prototype();
    REQUIRE(seen.size() == 1);
    return seen[0];
  };
  CHECK(seen_with(8, true, 0) == ImageSize{8, 11});
  CHECK(seen_with(20, true, 0) == ImageSize{31, 43});
  CHECK(seen_with(8, false, 0) == ImageSize{61, 85});
  // What is in the cache must serve all epochs.
  CHECK(seen_with(8, true, 1 << 20) == ImageSize{61, 85});
}

TEST_CASE("the cache keeps as many images as fit and changes no sample") {
  const ImageList list = small_images(10);
  const int64_t bytes = 3 * 14 * 19;
  DataLoader plain(std::make_shared<ImageDataset>(list, with_corner(true)), loading(0));
  for (const int64_t fit : {0, 4, 10, 100}) {
    ImageDatasetOptions options = with_corner(true);
    options.cache_bytes = fit * bytes + bytes / 2;
    const auto dataset = std::make_shared<ImageDataset>(list, options);
    DataLoader cached(dataset, loading(2));
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      CHECK(equal_images(read_epoch(cached, epoch).images, read_epoch(plain, epoch).images));
    CHECK(dataset->cached_images() == std::min<int64_t>(fit, 10));
    CHECK(dataset->cached_bytes() == std::min<int64_t>(fit, 10) * bytes);
  }
}

TEST_CASE("images in the cache are read from memory, and batches do not share it") {
  const TemporaryFolder folder;
  copy_fixture("colour.png", folder / "1.png");
  ImageDatasetOptions options;
  options.cache_bytes = 1 << 20;
  const ImageDataset dataset({.root = folder.path(), .files = {"1.png"}, .labels = {}, .classes = {}}, options);
  Batch out = dataset.prototype();
  std::filesystem::remove(folder / "1.png");
  const int64_t index = 0;
  const Tensor expected = decode_image(image_fixture("colour.png"));
  for (int round = 0; round < 2; ++round) {
    dataset.read(c10::ArrayRef<int64_t>(index), 0, out, {});
    CHECK(out["image"][0].equal(expected));
    out["image"].zero_();
    Batch ragged({Batch::Entry{"image", std::vector<Tensor>(1)}});
    dataset.read(c10::ArrayRef<int64_t>(index), 0, ragged, {});
    CHECK(ragged.list("image")[0].equal(expected));
    ragged.list("image")[0].zero_();
  }
}

TEST_CASE("images in memory are samples as well") {
  const Tensor images = at::randint(0, 256, {5, 3, 8, 8}, at::kLong).to(at::kByte);
  const auto dataset = std::make_shared<ImageDataset>(images, std::vector<int64_t>{4, 3, 2, 1, 0});
  DataLoaderOptions how;
  how.batch_size = 2;
  DataLoader loader(dataset, how);
  const Epoch epoch = read_epoch(loader, 0);
  CHECK(at::stack(epoch.images).equal(images));
  CHECK(numbers_of(epoch.labels) == std::vector<int64_t>{4, 3, 2, 1, 0});
  const ImageDataset cropped(images, {}, with_corner(false));
  CHECK(cropped.prototype()["image"].sizes() == at::IntArrayRef({1, 3, 6, 6}));
  CHECK_THROWS_AS(ImageDataset(images.to(at::kFloat), std::vector<int64_t>{}), DataError);
  CHECK_THROWS_AS(ImageDataset(images[0], std::vector<int64_t>{}), DataError);
}

TEST_CASE("indices and options out of range are refused") {
  const ImageDataset dataset(small_images(2));
  Batch out = dataset.prototype();
  for (const int64_t index : {int64_t{-1}, int64_t{2}})
    CHECK_THROWS_AS(dataset.read(c10::ArrayRef<int64_t>(index), 0, out, {}), DataError);
  ImageDatasetOptions options;
  options.max_bad_samples = -1;
  CHECK_THROWS_AS(ImageDataset(small_images(2), options), ConfigError);
  options = {};
  options.decode.channels = 4;
  CHECK_THROWS_AS(ImageDataset(small_images(2), options), ConfigError);
}

}  // namespace image_dataset_test
