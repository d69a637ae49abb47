#include "datasets/image_source.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "decoding/decode.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

class ImageFiles final : public ImageSource {
 public:
  ImageFiles(std::shared_ptr<const ImageList> list, DecodeOptions options)
      : list_(std::move(list)), options_(std::move(options)) {
    check_decode_options(options_);
    options_.enough = {};
  }
  int64_t size() const override { return list_->size(); }
  int64_t channels() const override { return options_.channels; }
  Tensor image(int64_t index, const Enough& enough) const override {
    if (!enough) return decode_file(list_->path(index), options_);
    DecodeOptions options = options_;
    options.enough = enough;
    return decode_file(list_->path(index), options);
  }
  std::optional<Tensor> image_into(int64_t index, ImageSize size, uint8_t* out) const override {
    std::optional<Tensor> other;
    decode_file_into(list_->path(index), options_, [&](ImageSize found) {
      if (found == size) return out;
      other = at::empty({options_.channels, found.height, found.width}, at::kByte);
      return other->mutable_data_ptr<uint8_t>();
    });
    return other;
  }
  std::string name(int64_t index) const override { return list_->path(index).string(); }

 private:
  std::shared_ptr<const ImageList> list_;
  DecodeOptions options_;
};

class ImageMemorySource final : public ImageSource {
 public:
  explicit ImageMemorySource(Tensor images) : images_(std::move(images)) {
    if (!images_.defined() || images_.dim() != 4 || images_.scalar_type() != at::kByte || !images_.is_cpu())
      throw DataError(cat("[images.ImageDataset] images in memory must be (N, C, H, W) uint8 on the CPU; got ",
                          images_.defined() ? cat(at::toString(images_.scalar_type()), " ", shape_text(images_.sizes()))
                                            : std::string("an undefined tensor"),
                          "."));
    images_ = images_.contiguous();
  }
  int64_t size() const override { return images_.size(0); }
  int64_t channels() const override { return images_.size(1); }
  Tensor image(int64_t index, const Enough&) const override { return images_.select(0, index); }
  std::optional<Tensor> image_into(int64_t index, ImageSize size, uint8_t* out) const override {
    if (size != ImageSize{images_.size(2), images_.size(3)}) return image(index, {});
    const auto bytes = images_.size(1) * size.height * size.width;
    std::memcpy(out, images_.const_data_ptr<uint8_t>() + index * bytes, static_cast<size_t>(bytes));
    return std::nullopt;
  }
  std::string name(int64_t index) const override { return cat("image ", index); }

 private:
  Tensor images_;
};

}  // namespace

std::unique_ptr<ImageSource> image_files(std::shared_ptr<const ImageList> list, DecodeOptions options) {
  return std::make_unique<ImageFiles>(std::move(list), std::move(options));
}

std::unique_ptr<ImageSource> image_memory(Tensor images) {
  return std::make_unique<ImageMemorySource>(std::move(images));
}

}  // namespace fulgur::detail
