#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/images/image_dataset.h"
#include "images/image_support.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"

namespace skipped_samples_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Twelve images of one size, some of which are bad in several ways: samples 0, 4, 5 and 11.
class BadFolder {
 public:
  static inline const std::vector<int64_t> kBad{0, 4, 5, 11};

  BadFolder() {
    const std::vector<std::string> names{"colour.png", "alpha.png", "grey.png", "interlaced.png", "palette.png"};
    list_.root = folder_.path();
    for (size_t i = 0; i < 12; ++i) {
      list_.files.push_back(std::to_string(i) + ".png");
      list_.labels.push_back(static_cast<int64_t>(i));
      list_.classes.push_back(std::to_string(i));
      copy_fixture(names[i % names.size()], file(i));
    }
    write_text(file(0), "");
    std::filesystem::resize_file(file(4), 120);
    write_text(file(5), "not an image");
    std::filesystem::remove(file(11));
  }
  std::filesystem::path file(size_t index) const { return folder_ / list_.files[index]; }
  std::shared_ptr<ImageDataset> dataset(OnBadSample what, int64_t most = 100) const {
    ImageDatasetOptions options;
    options.pipeline = ImagePipeline({std::make_shared<TestCorner>(TestCorner::Options{.size = 6, .random = true})});
    options.on_bad_sample = what;
    options.max_bad_samples = most;
    options.with_file = true;
    return std::make_shared<ImageDataset>(list_, options);
  }

 private:
  TemporaryFolder folder_;
  ImageList list_;
};

DataLoaderOptions in_batches(int64_t workers) {
  DataLoaderOptions options;
  options.batch_size = 5;
  options.num_workers = workers;
  return options;
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a bad sample is an error with its path, its index and the reason") {
  const BadFolder folder;
  const std::vector<std::pair<size_t, std::string>> reasons{
      {0, "0 bytes"}, {4, "ends too early"}, {5, "6e 6f 74"}, {11, "No such file"}};
  const auto dataset = folder.dataset(OnBadSample::raise);
  Batch out({Batch::Entry{"image", std::vector<Tensor>(1)}, Batch::Entry{"label", std::vector<Tensor>(1)},
             Batch::Entry{"file", std::vector<std::string>(1)}});
  for (const auto& [index, reason] : reasons) {
    const auto at = static_cast<int64_t>(index);
    CHECK_THAT(message_of<DataError>([&] { dataset->read(c10::ArrayRef<int64_t>(at), 0, out, {}); }),
               ContainsSubstring("sample " + std::to_string(index)) && ContainsSubstring(folder.file(index).string()) &&
                   ContainsSubstring(reason) && ContainsSubstring("on_bad_sample"));
  }
  for (const int64_t workers : {0, 2}) {
    DataLoader loader(dataset, in_batches(workers));
    CHECK_THAT(message_of<DataError>([&] { loader.start_epoch(0); }), ContainsSubstring("sample 0"));
  }
}

TEST_CASE("a bad sample is replaced by the next readable one, the same for any workers and ranks") {
  const BadFolder folder;
  std::vector<Tensor> expected;
  const std::string lines = shown_lines([&] {
    DataLoader loader(folder.dataset(OnBadSample::skip), in_batches(0));
    loader.configure(3, 0, 1);
    const Epoch epoch = read_epoch(loader, 0);
    // After the last comes the first, which is bad as well.
    const std::vector<int64_t> used{1, 1, 2, 3, 6, 6, 6, 7, 8, 9, 10, 1};
    CHECK(numbers_of(epoch.labels) == used);
    REQUIRE(epoch.files.size() == used.size());
    for (size_t i = 0; i < used.size(); ++i)
      CHECK(epoch.files[i] == folder.file(static_cast<size_t>(used[i])).string());
    expected = epoch.images;
    // Replacements have the random numbers of the sample that they replace.
    CHECK(!expected[4].equal(expected[6]));
    CHECK(equal_images(read_epoch(loader, 0).images, expected));
  });
  // Each is named once, though it was read in two epochs.
  for (const int64_t index : BadFolder::kBad)
    CHECK(occurrences(lines, folder.file(static_cast<size_t>(index)).string() + ")") == 1);
  CHECK(occurrences(lines, "images.bad_sample") == 1);
  CHECK(occurrences(lines, "skipped bad sample") == 4);
  CHECK_THAT(lines, ContainsSubstring("sample 0 (") && ContainsSubstring("0 bytes"));

  shown_lines([&] {
    for (const int64_t workers : {1, 3}) {
      DataLoader loader(folder.dataset(OnBadSample::skip), in_batches(workers));
      loader.configure(3, 0, 1);
      CHECK(equal_images(read_epoch(loader, 0).images, expected));
    }
    for (int64_t rank = 0; rank < 2; ++rank) {
      const auto dataset = folder.dataset(OnBadSample::skip);
      DataLoader loader(dataset, in_batches(2));
      loader.configure(3, rank, 2);
      const Epoch part = read_epoch(loader, 0);
      REQUIRE(part.images.size() == 6);
      for (size_t i = 0; i < part.images.size(); ++i)
        CHECK(part.images[i].equal(expected.at(2 * i + static_cast<size_t>(rank))));
    }
  });
}

TEST_CASE("more bad samples than allowed fail the run, with their list") {
  const BadFolder folder;
  shown_lines([&] {
    DataLoader four(folder.dataset(OnBadSample::skip, 4), in_batches(0));
    CHECK(read_epoch(four, 0).images.size() == 12);
    DataLoader three(folder.dataset(OnBadSample::skip, 3), in_batches(0));
    const std::string message = message_of<DataError>([&] { read_epoch(three, 0); });
    for (const int64_t index : BadFolder::kBad)
      CHECK_THAT(message, ContainsSubstring(folder.file(static_cast<size_t>(index)).string()));
    CHECK_THAT(message, ContainsSubstring("max_bad_samples = 3") && ContainsSubstring("4 are"));
    CHECK_THROWS_AS(folder.dataset(OnBadSample::skip, 0)->prototype(), DataError);
  });
}

TEST_CASE("readable samples are all but the bad ones, for any number of threads") {
  const BadFolder folder;
  const std::vector<int64_t> readable{1, 2, 3, 6, 7, 8, 9, 10};
  shown_lines([&] {
    for (const int64_t threads : {1, 3, 40}) {
      const auto dataset = folder.dataset(OnBadSample::skip);
      CHECK(dataset->readable_samples(threads) == readable);
      CHECK(dataset->bad_samples() == BadFolder::kBad);
    }
    CHECK_THROWS_AS(folder.dataset(OnBadSample::skip, 3)->readable_samples(3), DataError);
  });
  // Without `skip` nothing is read in advance.
  CHECK(folder.dataset(OnBadSample::raise)->readable_samples(2).size() == 12);
}

TEST_CASE("a data set of bad samples alone has no replacement") {
  const TemporaryFolder folder;
  write_text(folder / "1.png", "");
  write_text(folder / "2.png", "");
  ImageDatasetOptions options;
  options.on_bad_sample = OnBadSample::skip;
  shown_lines([&] {
    const ImageDataset dataset({.root = folder.path(), .files = {"1.png", "2.png"}, .labels = {}, .classes = {}},
                               options);
    CHECK_THAT(message_of<DataError>([&] { dataset.prototype(); }), ContainsSubstring("none of 2 is"));
  });
}

}  // namespace skipped_samples_test
