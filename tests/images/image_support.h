#pragma once

#include <ATen/ops/empty.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/images/image_transform.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

/// A file of tests/images/fixtures.
inline std::filesystem::path image_fixture(const std::string& name) {
  return std::filesystem::path(FULGUR_IMAGE_FIXTURES) / name;
}

inline std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// A fixture under another name; makes the folders.
inline void copy_fixture(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::create_directories(to.parent_path());
  std::filesystem::copy_file(image_fixture(name), to);
}

/// (channels, H, W) of interleaved bytes.
inline Tensor planes_of(const std::string& bytes, int64_t channels, int64_t height, int64_t width) {
  if (static_cast<int64_t>(bytes.size()) != channels * height * width)
    throw std::runtime_error("wrong size of a fixture");
  Tensor image = at::empty({channels, height, width}, at::kByte);
  auto* to = image.mutable_data_ptr<uint8_t>();
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < height * width; ++i)
      to[c * height * width + i] = static_cast<uint8_t>(bytes[static_cast<size_t>(i * channels + c)]);
  return image;
}

/// The corner of `size` x `size` pixels, moved by one random number, so that it changes with seed, epoch and index.
class TestCorner : public ImageTransform {
 public:
  struct Options {
    int64_t size = 4;
    bool random = false;
    void fields(Fields& f) {
      f(size, "size", "Pixels of a side.").at_least(1);
      f(random, "random", "Whether the corner is moved.");
    }
  };
  explicit TestCorner(const Options& options) : options_(options) {}
  Tensor apply(const Tensor& image, SplitMix64& random) const override {
    const auto start = [&](int64_t all) {
      return options_.random ? static_cast<int64_t>(random.below(static_cast<uint64_t>(all - options_.size + 1))) : 0;
    };
    const int64_t y = start(image.size(1)), x = start(image.size(2));
    return image.narrow(1, y, options_.size).narrow(2, x, options_.size).contiguous();
  }
  std::optional<ImageSize> enough(ImageSize, SplitMix64) const override { return std::nullopt; }

 private:
  Options options_;
};

/// What the loader yields in an epoch: batches joined.
struct Epoch {
  std::vector<Tensor> images, labels;
  std::vector<std::string> files;
};

inline Epoch read_epoch(Loader& loader, int64_t epoch) {
  Epoch all;
  loader.start_epoch(epoch);
  Batch batch;
  while (loader.next(batch)) {
    // Memory of a batch is used again.
    for (int64_t i = 0; i < batch.size(); ++i) {
      all.images.push_back(batch["image"][i].clone());
      if (batch.contains("label")) all.labels.push_back(batch["label"][i].clone());
      if (batch.contains("file")) all.files.push_back(batch.strings("file")[static_cast<size_t>(i)]);
    }
  }
  return all;
}

inline std::vector<int64_t> numbers_of(const std::vector<Tensor>& labels) {
  std::vector<int64_t> numbers;
  for (const Tensor& label : labels) numbers.push_back(label.item<int64_t>());
  return numbers;
}

inline bool equal_images(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) return false;
  return true;
}

}  // namespace fulgur::test
