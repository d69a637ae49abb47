#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/images/decode_image.h"
#include "fulgur/images/image_pipeline.h"

namespace fulgur {
namespace images {
class ImageBatchTransforms;
}

/// Image files and their classes.
struct FULGUR_API ImageList {
  std::filesystem::path root;        ///< folder to which `files` are relative
  std::vector<std::string> files;    ///< relative to `root`, or absolute
  std::vector<int64_t> labels;       ///< a class per file; empty if the files have no labels
  std::vector<std::string> classes;  ///< names by class

  int64_t size() const { return static_cast<int64_t>(files.size()); }
  std::filesystem::path path(int64_t index) const { return root / files.at(static_cast<size_t>(index)); }
  /// The files at `indices`, with the same root and classes.
  ImageList select(const std::vector<int64_t>& indices) const;
};

/// What an ImageDataset does with a file that cannot be read or decoded.
enum class OnBadSample {
  raise,  ///< throws a DataError with path, index and reason
  skip,   ///< uses another sample instead
};
constexpr auto enum_names(OnBadSample) {
  return std::to_array<EnumName<OnBadSample>>({{OnBadSample::raise, "raise"}, {OnBadSample::skip, "skip"}});
}

/// How an ImageDataset reads.
struct ImageDatasetOptions {
  DecodeOptions decode = {};  ///< `decode.enough` is not used: the pipeline knows it
  bool scaled_decode = true;  ///< decodes JPEG at 1/2, 1/4 or 1/8 if that is enough for the first transform
  ImagePipeline pipeline = {};
  ImagePipeline::Transforms device_transforms = {};  ///< what is drawn for them becomes an entry of the samples
  bool with_file = false;                            ///< adds the entry `file`
  OnBadSample on_bad_sample = OnBadSample::raise;
  int64_t max_bad_samples = 100;                     ///< with skip: one bad sample more is a DataError that lists them
  std::string transforms_option = "the transforms";  ///< how errors name what the pipeline was made from
  int64_t cache_bytes = 0;  ///< keeps decoded images in memory, as many as fit; then `scaled_decode` is off
};

/// Labelled images: entries `image` (C, H, W) uint8 or float32, as the pipeline returns it, `label` int64 (if there are
/// labels), `file` (a text, with `with_file`), and `image.parameters` (K) float32 if `device_transforms` draw K numbers
/// for each sample. Thread-safe. All images need one size after the pipeline, which is that of the first sample, unless
/// the loader has a collate function. If the pipeline is empty, files are decoded straight into the memory of the
/// batch.
///
/// With `skip`, a bad sample is replaced by the next one in the order of the data set that can be decoded (after the
/// last comes the first), with the label and the file name of that one and the random numbers of the bad one. So the
/// replacement is the same for any number of workers and ranks. Each bad sample is named once in a message. They are
/// counted by each process. Images of another size and errors of transforms are never skipped.
class FULGUR_API ImageDataset : public Dataset {
 public:
  /// Throws a ConfigError for options out of range, and a DataError if labels and files do not match.
  ImageDataset(ImageList list, ImageDatasetOptions options = {});
  /// Images in memory, (N, C, H, W) uint8 on the CPU, with a label each or none. Of the options, only
  /// `pipeline`, `device_transforms` and `with_file` are used.
  ImageDataset(Tensor images, std::vector<int64_t> labels, ImageDatasetOptions options = {});
  ~ImageDataset() override;

  int64_t size() const override;
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;
  /// `device_transforms` for the images that this data set reads, to be applied to its batches; null if there are none,
  /// or no samples. The first call reads the first sample, whose size after the pipeline is that of all images. Throws
  /// a ConfigError for a transform that cannot run on batches of these images.
  const images::ImageBatchTransforms* batch_transforms() const;
  /// Samples that can be decoded, in ascending order. With `skip` each file is decoded once for this, by `threads`
  /// threads; with `raise` all samples are returned unseen. A SubsetDataset of them has no replacements, as evaluation
  /// needs it. Throws a DataError if there are more than `max_bad_samples` bad ones.
  std::vector<int64_t> readable_samples(int64_t threads) const;
  /// Samples that were found bad so far, in ascending order.
  std::vector<int64_t> bad_samples() const;
  /// Decoded images that are in the cache, and their bytes.
  int64_t cached_images() const;
  int64_t cached_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
