#include <webp/decode.h>

#include <cstring>
#include <memory>
#include <new>

#include "decoding/exif.h"
#include "decoding/image_reader.h"
#include "decoding/pixel_rows.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

const char* webp_reason(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_BITSTREAM_ERROR:
      return "its data are damaged";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it uses a feature that libwebp does not support";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the file ends too early";
    default:
      return "it cannot be decoded";
  }
}

void check_webp(VP8StatusCode status) {
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != VP8_STATUS_OK) throw BadImage(cat("libwebp: ", webp_reason(status)));
}

uint32_t webp_number(const uint8_t* at) {
  return at[0] | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24;
}

/// The chunk EXIF of the RIFF file; empty if it has none.
std::span<const uint8_t> webp_exif(std::span<const uint8_t> bytes) {
  size_t at = 12;  // after RIFF, the size and WEBP
  while (at <= bytes.size() && bytes.size() - at >= 8) {
    const size_t left = bytes.size() - at - 8;
    const size_t length = webp_number(bytes.data() + at + 4);
    if (length > left) return {};
    if (std::memcmp(bytes.data() + at, "EXIF", 4) == 0) return bytes.subspan(at + 8, length);
    at += 8 + length + length % 2;
  }
  return {};
}

class WebpReader final : public ImageReader {
 public:
  PixelSize open(std::span<const uint8_t> bytes, const ReaderOptions& options) override {
    bytes_ = bytes;
    // A decoder of a cut file may be content with what is there.
    constexpr size_t kSizeAt = 4, kCountedFrom = 8;
    const size_t said = kCountedFrom + webp_number(bytes.data() + kSizeAt);
    if (said > bytes.size())
      throw BadImage(cat("the file ends too early: its header says ", said, " bytes, and it has ", bytes.size()));
    WebPBitstreamFeatures features;
    check_webp(WebPGetFeatures(bytes.data(), bytes.size(), &features));
    if (features.has_animation != 0) throw BadImage("animated WebP files cannot be read");
    stored_ = {features.height, features.width};
    check_pixels(stored_, options.max_pixels);
    channels_ = options.channels;
    orientation_ = options.exif_orientation ? exif_orientation(webp_exif(bytes)) : 1;
    return upright_size(stored_, orientation_);
  }

  void read(uint8_t* out) override {
    const size_t row_bytes = 3 * static_cast<size_t>(stored_.width);
    const size_t wanted = row_bytes * static_cast<size_t>(stored_.height);
    if (buffer_bytes_ < wanted) {
      buffer_ = std::make_unique_for_overwrite<uint8_t[]>(wanted);
      buffer_bytes_ = wanted;
    }
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0) throw BadImage("libwebp of another version than its headers is installed");
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = buffer_.get();
    config.output.u.RGBA.stride = static_cast<int>(row_bytes);
    config.output.u.RGBA.size = wanted;
    const VP8StatusCode status = WebPDecode(bytes_.data(), bytes_.size(), &config);
    WebPFreeDecBuffer(&config.output);
    check_webp(status);
    const PixelPlaces places = places_of(stored_, orientation_);
    for (int64_t y = 0; y < stored_.height; ++y)
      put_row(buffer_.get() + static_cast<size_t>(y) * row_bytes, PixelKind::rgb, stored_.width, y, places, channels_,
              out);
    if (buffer_bytes_ > kKeptBufferBytes) {
      buffer_.reset();
      buffer_bytes_ = 0;
    }
  }

 private:
  std::span<const uint8_t> bytes_;
  std::unique_ptr<uint8_t[]> buffer_;
  size_t buffer_bytes_ = 0;
  PixelSize stored_;
  int orientation_ = 1;
  int64_t channels_ = 3;
};

}  // namespace

ImageReader& webp_reader() {
  thread_local WebpReader reader;
  return reader;
}

}  // namespace fulgur::detail
