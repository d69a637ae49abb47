#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

inline constexpr int64_t kCifarPixels = 32 * 32;

/// A record of a binary CIFAR file: `label_bytes`, then 3 x 32 x 32 pixels.
struct CifarFormat {
  int64_t label_bytes = 1;
  int64_t label_at = 0;  ///< which of the bytes is the label
  int64_t classes = 10;
};

struct CifarImages {
  Tensor images;  ///< (N, 3, 32, 32) uint8
  std::vector<int64_t> labels;
};

/// The images of the files, one file after the other. Throws a DataError for a file that is absent, has part of a
/// record or no record, or a label out of range.
CifarImages read_cifar(const std::vector<std::filesystem::path>& files, const CifarFormat& format);

/// The lines of a file with a name per class, without empty ones. Throws a DataError if they are not `count`.
std::vector<std::string> read_cifar_names(const std::filesystem::path& file, int64_t count);

}  // namespace fulgur::detail
