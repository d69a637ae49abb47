#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "decoding/exif.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/images/decode_image.h"
#include "images/image_support.h"
#include "support/expect_error.h"

namespace hostile_images_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::vector<std::string>& all_images() {
  static const std::vector<std::string> names{
      "colour.jpg",     "progressive.jpg", "grey.jpg",   "restart.jpg", "cmyk.jpg",   "turned6.jpg",  "colour.png",
      "interlaced.png", "palette.png",     "grey16.png", "turned6.png", "lossy.webp", "lossless.webp"};
  return names;
}

/// Resident memory at its highest, in bytes.
int64_t peak_memory() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == "VmHWM:") {
      int64_t kilobytes = 0;
      in >> kilobytes;
      return kilobytes * 1024;
    }
  return 0;
}

}  // namespace

TEST_CASE("a file that is cut anywhere is an error, never a partly grey image") {
  for (const std::string& name : all_images()) {
    const std::string bytes = read_text(image_fixture(name));
    for (size_t length = 0; length < bytes.size(); length += 1 + length / 40) {
      INFO(name << " cut to " << length);
      const std::string cut = bytes.substr(0, length);
      CHECK_THROWS_AS(decode_image(as_bytes(cut)), DataError);
    }
    const std::string shorter = bytes.substr(0, bytes.size() - 1);
    CHECK_THROWS_AS(decode_image(as_bytes(shorter)), DataError);
  }
}

TEST_CASE("a JPEG that is cut inside its data and has an end marker is an error as well") {
  std::string bytes = read_text(image_fixture("colour.jpg"));
  bytes.resize(bytes.size() * 3 / 4);
  bytes += "\xff\xd9";
  CHECK_THAT(message_of<DataError>([&] { decode_image(as_bytes(bytes)); }), ContainsSubstring("libjpeg"));
}

TEST_CASE("changed bytes give an image of the same kind or an error, never a crash") {
  for (const std::string& name : all_images()) {
    const std::string good = read_text(image_fixture(name));
    for (size_t at = 0; at < good.size(); at += 3)
      for (const int mask : {0x01, 0x80, 0xff}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ mask);
        DecodeOptions options;
        options.max_pixels = 100'000;
        try {
          const Tensor image = decode_image(as_bytes(bad), options);
          CHECK(image.dim() == 3);
          CHECK(image.size(0) == 3);
          CHECK(image.size(1) * image.size(2) <= options.max_pixels);
        } catch (const DataError&) {
        }
      }
    // The decoders still work.
    CHECK(decode_image(image_fixture(name)).defined());
  }
}

TEST_CASE("each changed byte of the pixels of a PNG is found") {
  const std::string good = read_text(image_fixture("colour.png"));
  const size_t data = good.find("IDAT");
  REQUIRE(data != std::string::npos);
  const size_t end = good.find("IEND") - 4;
  for (size_t at = data + 4; at < end; ++at) {
    INFO(at);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    CHECK_THROWS_AS(decode_image(as_bytes(bad)), DataError);
  }
}

TEST_CASE("headers of huge images are refused before memory is used") {
  const int64_t before = peak_memory();
  CHECK_THAT(
      message_of<DataError>([] { decode_image(image_fixture("bomb.png")); }),
      ContainsSubstring("max_pixels = 100000000") && ContainsSubstring("30000x30000") && ContainsSubstring("bomb.png"));
  CHECK_THAT(message_of<DataError>([] { decode_image(image_fixture("more_than_data.png")); }),
             ContainsSubstring("cannot hold them"));
  CHECK(peak_memory() - before < 32 << 20);
  DecodeOptions few;
  few.max_pixels = 37 * 23;
  CHECK(decode_image(image_fixture("colour.jpg"), few).defined());
  few.max_pixels = 37 * 23 - 1;
  CHECK_THAT(message_of<DataError>([&] { decode_image(image_fixture("colour.jpg"), few); }),
             ContainsSubstring("37x23"));
  few.max_pixels = 21 * 17 - 1;
  CHECK_THAT(message_of<DataError>([&] { decode_image(image_fixture("lossy.webp"), few); }),
             ContainsSubstring("21x17"));
  few.max_pixels = 0;
  CHECK_THROWS_AS(decode_image(image_fixture("colour.jpg"), few), ConfigError);
}

TEST_CASE("files that are no images are named with what they look like") {
  const TemporaryFolder folder;
  const auto message = [&](const std::filesystem::path& path) {
    const std::string text = message_of<DataError>([&] { decode_image(path); });
    CHECK_THAT(text, ContainsSubstring(path.filename().string()));
    return text;
  };
  write_text(folder / "empty.jpg", "");
  CHECK_THAT(message(folder / "empty.jpg"), ContainsSubstring("0 bytes"));
  write_text(folder / "pointer.jpg", "version https://git-lfs.github.com/spec/v1\n");
  CHECK_THAT(message(folder / "pointer.jpg"), ContainsSubstring("Git LFS"));
  write_text(folder / "text.png", "hello");
  CHECK_THAT(message(folder / "text.png"), ContainsSubstring("68 65 6c 6c 6f"));
  CHECK_THAT(message(image_fixture("other.gif")), ContainsSubstring("GIF"));
  CHECK_THAT(message(image_fixture("animated.webp")), ContainsSubstring("animated"));
  CHECK_THAT(message(folder / "absent.jpg"), ContainsSubstring("No such file"));
  std::filesystem::create_directory(folder / "folder.jpg");
  CHECK_THAT(message(folder / "folder.jpg"), ContainsSubstring("folder"));
  // Does not wait for a writer.
  REQUIRE(::mkfifo((folder / "fifo.jpg").c_str(), 0600) == 0);
  CHECK_THAT(message(folder / "fifo.jpg"), ContainsSubstring("not a regular file"));
  std::filesystem::create_symlink("loop.jpg", folder / "loop.jpg");
  CHECK_THAT(message(folder / "loop.jpg"), ContainsSubstring("cannot be opened"));
}

TEST_CASE("EXIF data of any form give an orientation from 1 to 8") {
  const auto orientation = [](const std::string& exif) { return detail::exif_orientation(as_bytes(exif)); };
  const std::string little("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0", 22);
  const std::string big("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0", 22);
  CHECK(orientation(little) == 6);
  CHECK(orientation(big) == 3);
  CHECK(orientation(std::string("Exif\0\0", 6) + little) == 6);
  for (size_t length = 0; length < little.size(); ++length) CHECK(orientation(little.substr(0, length)) == 1);
  std::string nine = little;
  nine[18] = 9;
  CHECK(orientation(nine) == 1);
  std::string far = little;
  far[7] = '\x7f';  // the folder is beyond the end
  CHECK(orientation(far) == 1);
  std::string many = little;
  many[8] = many[9] = '\xff';  // more entries than bytes, of which the first is the orientation
  CHECK(orientation(many) == 6);
}

}  // namespace hostile_images_test
