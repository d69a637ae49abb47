#include "media/png_image.h"

#include <png.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

std::string png_image(const Tensor& pixels) {
  constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  const Tensor rows = pixels.permute({1, 2, 0}).contiguous();
  ::png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(rows.size(0));
  image.width = static_cast<png_uint_32>(rows.size(1));
  image.format = kFormats[rows.size(2) - 1];
  const auto fail = [&] {
    const std::string why = image.message;
    png_image_free(&image);
    throw Error(cat("[loggers.png_image] libpng must encode the image; it refused an image of ",
                    shape_text(pixels.sizes()), ": ", why, ". Log a smaller image."));
  };
  // As large as the file can be, so that the image is compressed only once.
  std::string file(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t bytes = file.size();
  if (png_image_write_to_memory(&image, file.data(), &bytes, 0, rows.const_data_ptr<uint8_t>(), 0, nullptr) == 0)
    fail();
  file.resize(bytes);
  return file;
}

}  // namespace fulgur
