#include <png.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "decoding/exif.h"
#include "decoding/image_reader.h"
#include "decoding/jumps.h"
#include "decoding/pixel_rows.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

struct PngInput {
  std::span<const uint8_t> bytes;
  size_t at = 0;
};

[[noreturn]] void on_png_error(png_structp png, png_const_charp text) {
  auto* jump = static_cast<ErrorJump*>(png_get_error_ptr(png));
  std::snprintf(jump->text, sizeof jump->text, "%s", text);
  std::longjmp(jump->target, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep to, size_t count) {
  auto* input = static_cast<PngInput*>(png_get_io_ptr(png));
  if (count > input->bytes.size() - input->at) png_error(png, "the file ends too early");
  std::memcpy(to, input->bytes.data() + input->at, count);
  input->at += count;
}

class PngReader final : public ImageReader {
 public:
  PngReader() = default;
  ~PngReader() override { close(); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  PixelSize open(std::span<const uint8_t> bytes, const ReaderOptions& options) override {
    close();
    input_ = {bytes};
    call([&] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &jump_, on_png_error, on_png_warning);
      if (png_ != nullptr) info_ = png_create_info_struct(png_);
    });
    if (png_ == nullptr || info_ == nullptr) throw std::bad_alloc();
    call([&] {
      png_set_read_fn(png_, &input_, read_png_bytes);
      png_read_info(png_, info_);
    });
    stored_ = {static_cast<int64_t>(png_get_image_height(png_, info_)),
               static_cast<int64_t>(png_get_image_width(png_, info_))};
    check_pixels(stored_, options.max_pixels);
    // Deflate's best ratio is 1032: a larger image cannot be in these bytes.
    constexpr uint64_t kDeflateRatio = 1032;
    const uint64_t needed =
        static_cast<uint64_t>(png_get_rowbytes(png_, info_)) * static_cast<uint64_t>(stored_.height);
    if (needed / kDeflateRatio > bytes.size())
      throw BadImage(
          cat("its header needs ", needed, " bytes of pixels; ", bytes.size(), " compressed bytes cannot hold them"));
    orientation_ = options.exif_orientation ? read_orientation() : 1;
    channels_ = options.channels;
    passes_ = 1;
    if (options.stored_values) check_one_value();
    call([&] {
      if (options.stored_values) {
        png_set_packing(png_);
      } else {
        png_set_strip_16(png_);
        png_set_palette_to_rgb(png_);
        png_set_expand_gray_1_2_4_to_8(png_);
        png_set_strip_alpha(png_);
      }
      passes_ = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    samples_ = png_get_channels(png_, info_);
    row_bytes_ = png_get_rowbytes(png_, info_);
    if ((samples_ != 1 && samples_ != 3) || row_bytes_ != samples_ * static_cast<size_t>(stored_.width))
      throw BadImage(
          cat("libpng must give 1 or 3 samples of 8 bits; it gives ", samples_, " in rows of ", row_bytes_, " bytes"));
    return upright_size(stored_, orientation_);
  }

  void read(uint8_t* out) override {
    const PixelPlaces places = places_of(stored_, orientation_);
    const PixelKind kind = samples_ == 1 ? PixelKind::grey : PixelKind::rgb;
    // The passes of an interlaced image need all its rows.
    const size_t rows = passes_ > 1 ? static_cast<size_t>(stored_.height) : 1;
    const size_t wanted = rows * row_bytes_;
    if (buffer_bytes_ < wanted) {
      buffer_ = std::make_unique_for_overwrite<uint8_t[]>(wanted);
      buffer_bytes_ = wanted;
    }
    uint8_t* const buffer = buffer_.get();
    call([&] {
      if (passes_ == 1) {
        for (int64_t y = 0; y < stored_.height; ++y) {
          png_read_row(png_, buffer, nullptr);
          put_row(buffer, kind, stored_.width, y, places, channels_, out);
        }
      } else {
        for (int pass = 0; pass < passes_; ++pass)
          for (size_t y = 0; y < rows; ++y) png_read_row(png_, buffer + y * row_bytes_, nullptr);
        for (size_t y = 0; y < rows; ++y)
          put_row(buffer + y * row_bytes_, kind, stored_.width, static_cast<int64_t>(y), places, channels_, out);
      }
      // Checks the sums of the pixel data.
      png_read_end(png_, nullptr);
    });
    close();
    if (buffer_bytes_ > kKeptBufferBytes) {
      buffer_.reset();
      buffer_bytes_ = 0;
    }
  }

 private:
  /// Calls libpng. Throws BadImage with its message.
  template <class Work>
  void call(const Work& work) {
    if (!without_errors(jump_, work)) throw BadImage(cat("libpng: ", escape_controls(jump_.text)));
  }

  void close() {
    if (png_ != nullptr) png_destroy_read_struct(&png_, &info_, nullptr);
    png_ = nullptr;
    info_ = nullptr;
  }

  void check_one_value() {
    const int type = png_get_color_type(png_, info_), bits = png_get_bit_depth(png_, info_);
    if ((type != PNG_COLOR_TYPE_GRAY && type != PNG_COLOR_TYPE_PALETTE) || bits > 8)
      throw BadImage(cat("a mask must be grey or have a palette, with at most 8 bits; it ",
                         bits > 8                            ? cat("has ", bits, " bits")
                         : type == PNG_COLOR_TYPE_GRAY_ALPHA ? "has an alpha channel"
                                                             : "has colours"));
  }

  int read_orientation() {
    png_uint_32 length = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png_, info_, &length, &exif) == 0 || exif == nullptr) return 1;
    return exif_orientation({exif, length});
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  ErrorJump jump_;
  PngInput input_;
  std::unique_ptr<uint8_t[]> buffer_;
  size_t buffer_bytes_ = 0;
  PixelSize stored_;
  size_t samples_ = 3, row_bytes_ = 0;
  int passes_ = 1, orientation_ = 1;
  int64_t channels_ = 3;
};

}  // namespace

ImageReader& png_reader() {
  thread_local PngReader reader;
  return reader;
}

}  // namespace fulgur::detail
