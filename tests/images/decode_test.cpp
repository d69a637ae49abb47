#include "fulgur/images/decode_image.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "fulgur/core/text/errors.h"
#include "images/image_support.h"
#include "support/expect_error.h"

namespace decode_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Case {
  std::string name, kind;
  int64_t height = 0, width = 0, tolerance = 0;
};

/// The cases that make_images.py has written.
std::vector<Case> cases() {
  std::ifstream in(image_fixture("cases.txt"));
  std::vector<Case> all;
  for (std::string line; std::getline(in, line);) {
    Case one;
    std::istringstream(line) >> one.name >> one.height >> one.width >> one.kind >> one.tolerance;
    all.push_back(one);
  }
  return all;
}

int64_t largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int64_t>();
}

/// Is enough at 1/`denominator`, but not below.
DecodeOptions at_scale(int64_t denominator) {
  DecodeOptions options;
  options.enough = [denominator](ImageSize size) {
    return std::optional(
        ImageSize{(size.height + denominator - 1) / denominator, (size.width + denominator - 1) / denominator});
  };
  return options;
}

}  // namespace

TEST_CASE("each fixture is decoded to the values of PIL") {
  const auto all = cases();
  REQUIRE(all.size() >= 35);
  for (const Case& one : all) {
    INFO(one.name << ' ' << one.kind);
    const bool grey = one.kind == "grey", scaled = one.kind != "grey" && one.kind != "rgb";
    DecodeOptions options = scaled ? at_scale(std::stoll(one.kind)) : DecodeOptions{};
    options.channels = grey ? 1 : 3;
    const std::string suffix = scaled ? one.kind + ".rgb" : one.kind;
    const Tensor expected =
        planes_of(read_text(image_fixture(one.name + "." + suffix)), options.channels, one.height, one.width);
    const Tensor image = decode_image(image_fixture(one.name), options);
    CHECK(image.scalar_type() == at::kByte);
    CHECK(image.is_contiguous());
    CHECK(largest_difference(image, expected) <= one.tolerance);
    // The same from memory.
    const std::string bytes = read_text(image_fixture(one.name));
    CHECK(decode_image(as_bytes(bytes), options).equal(image));
  }
}

TEST_CASE("the EXIF orientation is applied only if wanted, and before a scale is chosen") {
  DecodeOptions as_stored;
  as_stored.exif_orientation = false;
  const Tensor upright = decode_image(image_fixture("turned1.jpg"));
  for (int orientation = 1; orientation <= 8; ++orientation) {
    INFO(orientation);
    const auto file = image_fixture("turned" + std::to_string(orientation) + ".jpg");
    // All of them store the same pixels.
    CHECK(decode_image(file, as_stored).equal(upright));
    const Tensor turned = decode_image(file);
    CHECK(turned.size(1) == (orientation >= 5 ? 20 : 12));
    CHECK(turned.equal(upright) == (orientation == 1));
    ImageSize seen;
    DecodeOptions halved;
    halved.enough = [&seen](ImageSize size) {
      seen = size;
      return std::optional(ImageSize{size.height / 2, size.width / 2});
    };
    const Tensor half = decode_image(file, halved);
    CHECK(seen == ImageSize{turned.size(1), turned.size(2)});
    CHECK(half.sizes() == at::IntArrayRef({3, turned.size(1) / 2, turned.size(2) / 2}));
  }
}

TEST_CASE("a JPEG is decoded at the smallest scale that is enough in both dimensions") {
  const auto decoded = [](ImageSize least) {
    DecodeOptions options;
    options.enough = [least](ImageSize size) {
      CHECK(size == ImageSize{61, 85});
      return std::optional(least);
    };
    const Tensor image = decode_image(image_fixture("large.jpg"), options);
    return ImageSize{image.size(1), image.size(2)};
  };
  CHECK(decoded({1, 1}) == ImageSize{8, 11});
  CHECK(decoded({8, 11}) == ImageSize{8, 11});
  CHECK(decoded({9, 11}) == ImageSize{16, 22});
  CHECK(decoded({8, 12}) == ImageSize{16, 22});
  CHECK(decoded({17, 1}) == ImageSize{31, 43});
  CHECK(decoded({31, 44}) == ImageSize{61, 85});
  CHECK(decoded({400, 400}) == ImageSize{61, 85});
  DecodeOptions unasked;
  unasked.enough = [](ImageSize) { return std::optional<ImageSize>(); };
  CHECK(decode_image(image_fixture("large.jpg"), unasked).equal(decode_image(image_fixture("large.jpg"))));
  // Other formats have no scales.
  CHECK(decode_image(image_fixture("colour.png"), at_scale(8)).equal(decode_image(image_fixture("colour.png"))));
}

TEST_CASE("the format is that of the first bytes, not of the suffix") {
  const TemporaryFolder folder;
  copy_fixture("colour.png", folder / "image.jpg");
  CHECK(decode_image(folder / "image.jpg").equal(decode_image(image_fixture("colour.png"))));
}

TEST_CASE("grey and colour files become the wanted channels") {
  DecodeOptions grey;
  grey.channels = 1;
  for (const char* name : {"grey.jpg", "grey.png", "cmyk.jpg", "lossy.webp", "palette.png", "grey_alpha.png"}) {
    INFO(name);
    const Tensor one = decode_image(image_fixture(name), grey), three = decode_image(image_fixture(name));
    CHECK(one.size(0) == 1);
    CHECK(three.size(0) == 3);
    if (std::string(name).starts_with("grey"))
      for (int64_t channel = 0; channel < 3; ++channel) CHECK(three[channel].equal(one[0]));
  }
  DecodeOptions two;
  two.channels = 2;
  CHECK_THAT(message_of<ConfigError>([&] { decode_image(image_fixture("grey.png"), two); }),
             ContainsSubstring("1 or 3"));
}

TEST_CASE("threads decode the same, also after a file that failed") {
  const std::vector<std::string> names{"colour.jpg",     "progressive.jpg", "cmyk.jpg",
                                       "interlaced.png", "palette.png",     "lossy.webp"};
  std::vector<Tensor> expected;
  for (const auto& name : names) expected.push_back(decode_image(image_fixture(name)));
  std::vector<int> wrong(3, 0);
  std::vector<std::thread> threads;
  for (size_t who = 0; who < wrong.size(); ++who)
    threads.emplace_back([&, who] {
      for (size_t round = 0; round < 30; ++round) {
        const size_t i = (round + who) % names.size();
        const std::string bytes = read_text(image_fixture(names[i]));
        try {
          const std::string half = bytes.substr(0, bytes.size() / 2);
          decode_image(as_bytes(half));
          ++wrong[who];
        } catch (const DataError&) {
          if (!decode_image(as_bytes(bytes)).equal(expected[i])) ++wrong[who];
        }
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(3, 0));
}

}  // namespace decode_test
