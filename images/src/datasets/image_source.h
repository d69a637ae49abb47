#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fulgur/images/image_dataset.h"

namespace fulgur::detail {

/// Where the images of an ImageDataset come from. Thread-safe.
class ImageSource {
 public:
  using Enough = std::function<std::optional<ImageSize>(ImageSize)>;

  virtual ~ImageSource() = default;
  virtual int64_t size() const = 0;
  /// Channels of all images.
  virtual int64_t channels() const = 0;
  /// Image `index`, (C, H, W) uint8, which may be shared. `enough` may be empty. Throws BadImage.
  virtual Tensor image(int64_t index, const Enough& enough) const = 0;
  /// Writes image `index` to `out` if it has `size`, or returns it. Throws BadImage; `out` is then undefined.
  virtual std::optional<Tensor> image_into(int64_t index, ImageSize size, uint8_t* out) const = 0;
  /// For messages and the entry `file`.
  virtual std::string name(int64_t index) const = 0;
};

/// Files that are decoded each time.
std::unique_ptr<ImageSource> image_files(std::shared_ptr<const ImageList> list, DecodeOptions options);

/// Images (N, C, H, W) uint8.
std::unique_ptr<ImageSource> image_memory(Tensor images);

}  // namespace fulgur::detail
