#include "fulgur/images/image_batch_transforms.h"

#include <string>
#include <typeinfo>
#include <utility>

#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::images {
namespace {

std::string batch_transform_name(const ImageTransform* transform) {
  return transform ? detail::class_name(typeid(*transform)) : "a null pointer";
}

const BatchImageTransform& checked_batch_transform(const ImageTransform* transform) {
  const auto* const on_batches = dynamic_cast<const BatchImageTransform*>(transform);
  if (!on_batches)
    throw ConfigError(cat("[images.ImageBatchTransforms] a transform on the device must be able to run on batches; ",
                          batch_transform_name(transform),
                          " cannot. Move it to the transforms on workers, before those on the device."));
  return *on_batches;
}

}  // namespace

void ImageBatchTransforms::check_kinds(const ImagePipeline::Transforms& transforms) {
  for (const auto& transform : transforms) checked_batch_transform(transform.get());
}

ImageBatchTransforms::ImageBatchTransforms(ImagePipeline::Transforms transforms, int64_t channels, ImageSize size,
                                           size_t first_place)
    : channels_(channels), size_(size), output_size_(size), first_place_(first_place) {
  for (auto& owner : transforms) {
    const BatchImageTransform& transform = checked_batch_transform(owner.get());
    transform.check_batch(output_size_, channels);
    steps_.push_back({std::move(owner), &transform, output_size_, parameter_count_});
    parameter_count_ += transform.parameter_count();
    output_size_ = transform.size_after(output_size_);
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

std::string_view ImageBatchTransforms::parameters_entry() const {
  return parameter_count_ > 0 ? kParameters : std::string_view();
}

Batch ImageBatchTransforms::apply(Batch batch) const {
  if (steps_.empty()) return batch;
  const Tensor images = apply(batch["image"], parameter_count_ > 0 ? batch[kParameters] : Tensor());
  Batch result;
  for (Batch::Entry& entry : batch) {
    if (entry.first == kParameters && parameter_count_ > 0) continue;
    if (entry.first == "image")
      result.add("image", images);
    else
      result.add(entry.first, std::move(entry.second));
  }
  return result;
}

}  // namespace fulgur::images
