#include "fulgur/images/image_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "datasets/bad_samples.h"
#include "datasets/image_cache.h"
#include "datasets/image_source.h"
#include "decoding/bad_image.h"
#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/images/image_batch_transforms.h"

namespace fulgur {

using detail::BadImage;

struct ImageDataset::Impl {
  ImageDatasetOptions options;
  std::shared_ptr<const ImageList> list;  ///< keeps the labels of files
  std::vector<int64_t> own_labels;        ///< of images in memory
  std::unique_ptr<detail::ImageSource> source;
  std::unique_ptr<detail::ImageCache> cache;
  detail::BadSamples bad;
  std::once_flag first_read;  ///< sets `on_device`
  std::unique_ptr<const images::ImageBatchTransforms> on_device;

  explicit Impl(ImageDatasetOptions how) : options(std::move(how)), bad(options.max_bad_samples) {
    if (options.max_bad_samples < 0 || options.cache_bytes < 0)
      throw ConfigError(cat("[images.ImageDataset] max_bad_samples and cache_bytes must not be negative; got ",
                            options.max_bad_samples, " and ", options.cache_bytes, "."));
    images::ImageBatchTransforms::check_kinds(options.device_transforms);
  }

  const std::vector<int64_t>& labels() const { return list ? list->labels : own_labels; }

  void check_labels() const {
    const auto count = static_cast<int64_t>(labels().size());
    if (count != 0 && count != source->size())
      throw DataError(cat("[images.ImageDataset] there must be as many labels as images, or none; got ", count,
                          " labels for ", counted(source->size(), "image"), "."));
  }

  std::string sample_text(int64_t index) const {
    return cat("sample ", index, " (file ", escape_controls(source->name(index)), ")");
  }

  // ---- decoding ----

  /// The decoded image; `random_index` and `context` say what the pipeline will draw. Throws BadImage.
  Tensor decoded(int64_t index, int64_t random_index, const SampleContext& context) const {
    if (cache) {
      // At full size: what `enough` says may depend on the epoch.
      Tensor image = cache->find(index);
      if (image.defined()) return image;
      image = source->image(index, {});
      cache->add(index, image);
      return image;
    }
    if (!options.scaled_decode || options.pipeline.empty()) return source->image(index, {});
    struct Request {
      const ImagePipeline& pipeline;
      const SampleContext& context;
      int64_t index;
    } const request{options.pipeline, context, random_index};
    // One reference: small enough for std::function to need no memory.
    return source->image(
        index, [&request](ImageSize size) { return request.pipeline.enough(size, request.context, request.index); });
  }

  bool is_absent(int64_t index) const {
    std::error_code none;
    return list && !std::filesystem::exists(list->path(index), none);
  }

  /// Calls `use` with `index`, or, with `skip`, with the next sample for which it does not throw BadImage.
  template <class Use>
  void with_readable(int64_t index, const Use& use) {
    const int64_t count = source->size();
    for (int64_t tried = 0, at = index; tried < count; ++tried, at = (at + 1) % count) {
      if (bad.contains(at)) continue;
      try {
        return use(at);
      } catch (const BadImage& error) {
        if (options.on_bad_sample == OnBadSample::raise)
          throw DataError(cat("[images.ImageDataset] each file must be an image that can be decoded; ", sample_text(at),
                              ": ", error.what(), ". Replace or remove the file, ",
                              is_absent(at) ? "correct the folder of relative paths (root), " : "",
                              "or set on_bad_sample to skip."));
        bad.add(at, source->name(at), error.what());
      }
    }
    throw DataError(cat("[images.ImageDataset] at least one sample must be readable to replace sample ", index,
                        "; none of ", count, " is. Check the data set."));
  }

  // ---- transforms on the device ----

  const images::ImageBatchTransforms* batch_transforms() {
    if (options.device_transforms.empty() || source->size() == 0) return nullptr;
    std::call_once(first_read, [this] {
      Tensor image;
      with_readable(0, [&](int64_t used) { image = transformed(used, 0, {}); });
      on_device = std::make_unique<const images::ImageBatchTransforms>(
          options.device_transforms, image.size(0), ImageSize{image.size(1), image.size(2)}, options.pipeline.size());
    });
    return on_device.get();
  }

  /// How many numbers the transforms on the device need of each sample.
  int64_t parameter_count() {
    const auto* const transforms = batch_transforms();
    return transforms ? transforms->parameter_count() : 0;
  }

  void write_parameters(int64_t random_index, Batch::Value& to, int64_t row, const SampleContext& context) const {
    Tensor target;
    if (auto* list_of_rows = std::get_if<std::vector<Tensor>>(&to))
      target = list_of_rows->at(static_cast<size_t>(row)) = at::empty({on_device->parameter_count()}, at::kFloat);
    else
      target = std::get<Tensor>(to).select(0, row);
    on_device->draw(context, random_index, target.mutable_data_ptr<float>());
  }

  // ---- writing of rows ----

  void write_image(int64_t index, int64_t random_index, Batch::Value& to, int64_t row, const SampleContext& context) {
    if (auto* list_of_images = std::get_if<std::vector<Tensor>>(&to)) {
      const Tensor image = transformed(index, random_index, context);
      if (on_device && ImageSize{image.size(1), image.size(2)} != on_device->input_size())
        throw DataError(cat("[images.ImageDataset] transforms on the device need images of one size; ",
                            sample_text(index), " has ", shape_text(image.sizes()), ", the first one had ",
                            on_device->input_size().height, " x ", on_device->input_size().width,
                            ". Use transforms on workers."));
      // An image of the cache or of the memory must not be changed by whoever gets the batch.
      list_of_images->at(static_cast<size_t>(row)) =
          options.pipeline.empty() && (cache || !list) ? image.clone() : image;
      return;
    }
    const Tensor target = std::get<Tensor>(to).select(0, row);
    if (options.pipeline.empty() && !cache && target.scalar_type() == at::kByte && target.is_contiguous() &&
        target.dim() == 3 && target.size(0) == source->channels()) {
      const auto other =
          source->image_into(index, {target.size(1), target.size(2)}, target.mutable_data_ptr<uint8_t>());
      if (other) refuse_shape(index, *other, target);
      return;
    }
    const Tensor image = transformed(index, random_index, context);
    if (image.sizes() != target.sizes() || image.scalar_type() != target.scalar_type())
      refuse_shape(index, image, target);
    if (target.is_contiguous() && image.is_contiguous())
      std::memcpy(target.mutable_data_ptr(), image.const_data_ptr(), image.nbytes());
    else
      target.copy_(image);
  }

  Tensor transformed(int64_t index, int64_t random_index, const SampleContext& context) const {
    const Tensor image = decoded(index, random_index, context);
    try {
      return options.pipeline.apply(image, context, random_index);
    } catch (const DataError& error) {
      throw DataError(cat(error.what(), " (", sample_text(index), ")"));
    }
  }

  [[noreturn]] void refuse_shape(int64_t index, const Tensor& image, const Tensor& target) const {
    if (image.scalar_type() != target.scalar_type())
      throw DataError(cat("[images.ImageDataset] the transforms must return the same dtype for all samples; ",
                          sample_text(index), " is ", at::toString(image.scalar_type()), ", the first one was ",
                          at::toString(target.scalar_type()), "."));
    throw DataError(
        cat("[images.ImageDataset] all images of a data set must have one size (channels, height, width) "
            "after the transforms; ",
            sample_text(index), " has ", shape_text(image.sizes()), ", the first one had ", shape_text(target.sizes()),
            ". Add Resize with height and width, CenterCrop or RandomResizedCrop to ", options.transforms_option, "."));
  }

  void write_label(int64_t index, Batch::Value& to, int64_t row) const {
    const int64_t label = labels()[static_cast<size_t>(index)];
    if (auto* list_of_labels = std::get_if<std::vector<Tensor>>(&to))
      list_of_labels->at(static_cast<size_t>(row)) = at::scalar_tensor(label, at::kLong);
    else
      std::get<Tensor>(to).mutable_data_ptr<int64_t>()[row] = label;
  }

  void write(int64_t index, int64_t row, Batch& out, const SampleContext& context) {
    const bool draws = parameter_count() > 0;
    with_readable(index, [&](int64_t used) {
      size_t entry = 0;
      write_image(used, index, out.entry(entry++).second, row, context);
      if (!labels().empty()) write_label(used, out.entry(entry++).second, row);
      if (options.with_file)
        std::get<std::vector<std::string>>(out.entry(entry++).second).at(static_cast<size_t>(row)) = source->name(used);
      // Of the sample that was asked for, as in the pipeline.
      if (draws) write_parameters(index, out.entry(entry).second, row, context);
    });
  }
};

ImageDataset::ImageDataset(ImageList list, ImageDatasetOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->list = std::make_shared<const ImageList>(std::move(list));
  impl_->source = detail::image_files(impl_->list, impl_->options.decode);
  impl_->check_labels();
  if (impl_->options.cache_bytes > 0)
    impl_->cache = std::make_unique<detail::ImageCache>(size(), impl_->options.cache_bytes);
}

ImageDataset::ImageDataset(Tensor images, std::vector<int64_t> labels, ImageDatasetOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->source = detail::image_memory(std::move(images));
  impl_->own_labels = std::move(labels);
  impl_->check_labels();
}

ImageDataset::~ImageDataset() = default;

int64_t ImageDataset::size() const { return impl_->source->size(); }

Batch ImageDataset::prototype() const {
  Batch batch;
  if (size() == 0) return batch;
  Tensor image;
  impl_->with_readable(0, [&](int64_t used) { image = impl_->transformed(used, 0, {}); });
  batch.add("image", at::empty(image.unsqueeze(0).sizes(), image.scalar_type()));
  if (!impl_->labels().empty()) batch.add("label", at::empty({1}, at::kLong));
  if (impl_->options.with_file) batch.add("file", std::vector<std::string>(1));
  if (const int64_t count = impl_->parameter_count(); count > 0)
    batch.add(std::string(images::ImageBatchTransforms::kParameters), at::empty({1, count}, at::kFloat));
  return batch;
}

void ImageDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                        const SampleContext& context) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= size())
      throw DataError(cat("[images.ImageDataset] the index must be in [0, ", size(), "); got ", indices[i], "."));
    impl_->write(indices[i], first_row + static_cast<int64_t>(i), out, context);
  }
}

const images::ImageBatchTransforms* ImageDataset::batch_transforms() const { return impl_->batch_transforms(); }

std::vector<int64_t> ImageDataset::readable_samples(int64_t threads) const {
  Impl& m = *impl_;
  const int64_t count = size();
  if (m.options.on_bad_sample == OnBadSample::skip && m.list) {
    std::atomic<int64_t> next{0};
    std::vector<std::exception_ptr> errors(static_cast<size_t>(std::clamp<int64_t>(threads, 1, 256)));
    const auto check = [&](size_t who) {
      try {
        for (int64_t index = next++; index < count; index = next++) {
          try {
            if (!m.bad.contains(index)) m.decoded(index, index, {});
          } catch (const BadImage& error) {
            m.bad.add(index, m.source->name(index), error.what());
          }
        }
      } catch (...) {
        errors[who] = std::current_exception();
        next = count;
      }
    };
    std::vector<std::thread> others;
    try {
      for (size_t who = 1; who < errors.size() && static_cast<int64_t>(who) < count; ++who)
        others.push_back(start_thread("images.ImageDataset", "Lower num_workers.", [&check, who] { check(who); }));
    } catch (...) {
      errors[0] = std::current_exception();
      next = count;
    }
    if (!errors[0]) check(0);
    for (auto& thread : others) thread.join();
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
  }
  std::vector<int64_t> readable;
  for (int64_t index = 0; index < count; ++index)
    if (!m.bad.contains(index)) readable.push_back(index);
  return readable;
}

std::vector<int64_t> ImageDataset::bad_samples() const { return impl_->bad.indices(); }
int64_t ImageDataset::cached_images() const { return impl_->cache ? impl_->cache->images() : 0; }
int64_t ImageDataset::cached_bytes() const { return impl_->cache ? impl_->cache->bytes() : 0; }

}  // namespace fulgur
