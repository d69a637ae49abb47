#include <cstddef>
#include <cstdio>

// It needs the two above, and jerror.h needs it.
#include <jpeglib.h>

#include <jerror.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "decoding/exif.h"
#include "decoding/image_reader.h"
#include "decoding/jumps.h"
#include "decoding/pixel_rows.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

/// A file of a few kilobytes can have thousands of scans, each of which costs as much as decoding the image.
constexpr int kMostJpegScans = 500;

/// libjpeg gets a pointer to `manager`, the first member.
struct JpegErrors {
  jpeg_error_mgr manager;
  ErrorJump jump;
};

JpegErrors& jpeg_errors_of(j_common_ptr info) { return *reinterpret_cast<JpegErrors*>(info->err); }

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  std::array<char, JMSG_LENGTH_MAX> text{};
  info->err->format_message(info, text.data());
  JpegErrors& errors = jpeg_errors_of(info);
  std::snprintf(errors.jump.text, sizeof errors.jump.text, "%s", text.data());
  std::longjmp(errors.jump.target, 1);
}

/// libjpeg only warns if data are missing, and fills the rest of the image with grey.
void on_jpeg_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      on_jpeg_error(info);
    default:
      break;  // such as bytes between markers, which do not change a pixel
  }
}

void on_jpeg_text(j_common_ptr) {}

void on_jpeg_progress(j_common_ptr info) {
  if (info->is_decompressor == FALSE) return;
  const int scan = reinterpret_cast<j_decompress_ptr>(info)->input_scan_number;
  if (scan <= kMostJpegScans) return;
  JpegErrors& errors = jpeg_errors_of(info);
  std::snprintf(errors.jump.text, sizeof errors.jump.text, "it has more than %d scans", kMostJpegScans);
  std::longjmp(errors.jump.target, 1);
}

int64_t jpeg_scaled(int64_t size, int64_t denominator) { return (size + denominator - 1) / denominator; }

class JpegReader final : public ImageReader {
 public:
  JpegReader() {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_jpeg_error;
    errors_.manager.emit_message = on_jpeg_message;
    errors_.manager.output_message = on_jpeg_text;
    call([&] {
      jpeg_create_decompress(&info_);
      jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xffff);
    });
    progress_.progress_monitor = on_jpeg_progress;
    info_.progress = &progress_;
  }
  ~JpegReader() override { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  PixelSize open(std::span<const uint8_t> bytes, const ReaderOptions& options) override {
    jpeg_abort_decompress(&info_);  // the image before may not have been read to its end
    call([&] {
      jpeg_mem_src(&info_, bytes.data(), static_cast<unsigned long>(bytes.size()));
      jpeg_read_header(&info_, TRUE);
    });
    const PixelSize full{static_cast<int64_t>(info_.image_height), static_cast<int64_t>(info_.image_width)};
    check_pixels(full, options.max_pixels);
    channels_ = options.channels;
    choose_kind();
    orientation_ = options.exif_orientation ? read_orientation() : 1;
    const PixelSize upright = upright_size(full, orientation_);
    int64_t denominator = 1;
    if (const auto least = options.enough ? options.enough(upright) : std::nullopt)
      for (const int64_t by : {8, 4, 2})
        if (jpeg_scaled(upright.height, by) >= least->height && jpeg_scaled(upright.width, by) >= least->width) {
          denominator = by;
          break;
        }
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(denominator);
    call([&] { jpeg_calc_output_dimensions(&info_); });
    stored_ = {static_cast<int64_t>(info_.output_height), static_cast<int64_t>(info_.output_width)};
    return upright_size(stored_, orientation_);
  }

  void read(uint8_t* out) override {
    const size_t samples = kind_ == PixelKind::grey ? 1 : kind_ == PixelKind::rgb ? 3 : 4;
    row_.resize(static_cast<size_t>(stored_.width) * samples);
    const PixelPlaces places = places_of(stored_, orientation_);
    JSAMPROW row = row_.data();
    call([&] {
      jpeg_start_decompress(&info_);
      for (int64_t y = 0; y < stored_.height; ++y) {
        jpeg_read_scanlines(&info_, &row, 1);
        put_row(row, kind_, stored_.width, y, places, channels_, out);
      }
      // Also finds whether the end marker is there, and frees the memory of this image.
      jpeg_finish_decompress(&info_);
    });
  }

 private:
  /// Calls libjpeg. Throws BadImage with its message.
  template <class Work>
  void call(const Work& work) {
    if (!without_errors(errors_.jump, work)) throw BadImage(cat("libjpeg: ", escape_controls(errors_.jump.text)));
  }

  void choose_kind() {
    switch (info_.num_components) {
      case 1:
        kind_ = PixelKind::grey;
        break;
      case 3:
        kind_ = channels_ == 1 ? PixelKind::grey : PixelKind::rgb;
        break;
      case 4:
        kind_ = PixelKind::inverted_cmyk;
        break;
      default:
        throw BadImage(cat("a JPEG must have 1, 3 or 4 components; it has ", info_.num_components));
    }
    info_.out_color_space = kind_ == PixelKind::grey ? JCS_GRAYSCALE : kind_ == PixelKind::rgb ? JCS_RGB : JCS_CMYK;
  }

  int read_orientation() const {
    constexpr char kExif[] = "Exif\0";  // with the second zero at its end
    for (auto* marker = info_.marker_list; marker != nullptr; marker = marker->next)
      if (marker->data_length >= sizeof kExif && std::memcmp(marker->data, kExif, sizeof kExif) == 0)
        return exif_orientation({marker->data, marker->data_length});
    return 1;
  }

  jpeg_decompress_struct info_{};
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
  std::vector<uint8_t> row_;
  PixelSize stored_;
  PixelKind kind_ = PixelKind::rgb;
  int orientation_ = 1;
  int64_t channels_ = 3;
};

}  // namespace

ImageReader& jpeg_reader() {
  thread_local JpegReader reader;
  return reader;
}

}  // namespace fulgur::detail
