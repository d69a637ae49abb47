#include "datasets/image_cache.h"

namespace fulgur::detail {

ImageCache::ImageCache(int64_t images, int64_t most_bytes)
    : images_(static_cast<size_t>(images)), most_bytes_(most_bytes) {}

Tensor ImageCache::find(int64_t index) const {
  const std::lock_guard lock(mutex_);
  return images_[static_cast<size_t>(index)];
}

void ImageCache::add(int64_t index, const Tensor& image) {
  const int64_t bytes = image.numel() * image.element_size();
  const std::lock_guard lock(mutex_);
  Tensor& slot = images_[static_cast<size_t>(index)];
  if (slot.defined() || bytes > most_bytes_ - bytes_) return;
  slot = image;
  bytes_ += bytes;
  ++count_;
}

int64_t ImageCache::images() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

int64_t ImageCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace fulgur::detail
