#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Decoded images in memory, up to a number of bytes; nothing is evicted, since each epoch reads all images. A
/// CachedDataset keeps samples of one shape, the first ones of the data; these are images of different sizes, from
/// between decoding and the transforms, which are random, in the order in which they are read.
/// Thread-safe.
class ImageCache {
 public:
  ImageCache(int64_t images, int64_t most_bytes);
  /// Undefined if the image is not here.
  Tensor find(int64_t index) const;
  /// Keeps the image if there is room for it.
  void add(int64_t index, const Tensor& image);
  int64_t images() const;
  int64_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Tensor> images_;
  int64_t most_bytes_, bytes_ = 0, count_ = 0;
};

}  // namespace fulgur::detail
