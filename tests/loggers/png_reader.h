#pragma once

#include <png.h>

#include <ATen/ops/empty.h>
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "fulgur/core/state/tensor.h"

namespace fulgur::test {

/// The pixels of a PNG file, (C, H, W), as libpng reads them.
inline Tensor read_png(const std::string& file) {
  ::png_image image{};
  image.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_memory(&image, file.data(), file.size()) != 0);
  const Tensor rows = at::empty({image.height, image.width, PNG_IMAGE_SAMPLE_CHANNELS(image.format)}, at::kByte);
  REQUIRE(png_image_finish_read(&image, nullptr, rows.data_ptr<uint8_t>(), 0, nullptr) != 0);
  return rows.permute({2, 0, 1}).contiguous();
}

}  // namespace fulgur::test
