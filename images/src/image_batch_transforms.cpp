#include "fulgur/images/image_batch_transforms.h"

#include <string>
#include <typeinfo>
#include <utility>

#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::images {
namespace {

std::string name_of(const ImageTransform* transform) {
  return transform ? detail::class_name(typeid(*transform)) : "a null pointer";
}

}  // namespace

SplitMix64 transform_random(const SampleContext& context, int64_t index, size_t place) {
  const uint64_t of_sample = context.random(index).next();
  return SplitMix64(mix_bits(of_sample + 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(place));
}

ImageBatchTransforms::ImageBatchTransforms(std::vector<std::shared_ptr<const ImageTransform>> transforms,
                                           int64_t channels, ImageSize size, size_t first_place)
    : channels_(channels), size_(size), output_size_(size), first_place_(first_place) {
  for (auto& owner : transforms) {
    const auto* const transform = dynamic_cast<const BatchImageTransform*>(owner.get());
    if (!transform)
      throw ConfigError(cat("[images.ImageBatchTransforms] a transform on the device must be able to run on batches; ",
                            name_of(owner.get()),
                            " cannot. Move it to the transforms on workers, before those on the device."));
    transform->check_batch(output_size_, channels);
    steps_.push_back({std::move(owner), transform, output_size_, parameter_count_});
    parameter_count_ += transform->parameter_count();
    output_size_ = transform->size_after(output_size_);
  }
}

void ImageBatchTransforms::draw(const SampleContext& context, int64_t index, float* row) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    SplitMix64 random = transform_random(context, index, first_place_ + i);
    step.transform->draw(step.size, random, row + step.first);
  }
}

Tensor ImageBatchTransforms::apply(Tensor images, const Tensor& parameters) const {
  if (images.dim() != 4 || images.size(1) != channels_ || images.size(2) != size_.height ||
      images.size(3) != size_.width)
    throw DataError(cat("[images.ImageBatchTransforms] images must be (N, ", channels_, ", ", size_.height, ", ",
                        size_.width, "); got ", shape_text(images.sizes()), "."));
  if (parameter_count_ > 0 && (parameters.dim() != 2 || parameters.size(0) != images.size(0) ||
                               parameters.size(1) != parameter_count_ || parameters.scalar_type() != at::kFloat))
    throw DataError(cat("[images.ImageBatchTransforms] parameters must be float32 [", images.size(0), ", ",
                        parameter_count_, "]; got ", c10::toString(parameters.scalar_type()), " ",
                        shape_text(parameters.sizes()), "."));
  for (const Step& step : steps_) {
    const int64_t count = step.transform->parameter_count();
    images = step.transform->apply_batch(images, count > 0 ? parameters.narrow(1, step.first, count) : Tensor());
  }
  return images;
}

Batch ImageBatchTransforms::apply(Batch batch, std::string_view image) const {
  if (steps_.empty()) return batch;
  const std::string name(image), parameters = name + ".parameters";
  const Tensor images = apply(batch[name], parameter_count_ > 0 ? batch[parameters] : Tensor());
  Batch result;
  for (Batch::Entry& entry : batch) {
    if (entry.first == parameters && parameter_count_ > 0) continue;
    if (entry.first == name)
      result.add(name, images);
    else
      result.add(entry.first, std::move(entry.second));
  }
  return result;
}

}  // namespace fulgur::images
