#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/state/stage.h"
#include "fulgur/images/image_dataset.h"

namespace fulgur::detail {

/// The data sets of an image data module.
class ImageSets {
 public:
  virtual ~ImageSets() = default;
  /// Names of the classes, as the training data have them; nullopt if the training data are absent, which a run that
  /// only evaluates need not have.
  virtual std::optional<std::vector<std::string>> classes() = 0;
  /// The file or folder that `classes` reads, for messages.
  virtual std::filesystem::path source_of_classes() const = 0;
  /// How samples are read, without `pipeline` and `with_file`.
  virtual ImageDatasetOptions reading() const = 0;
  /// The data set of the stage, asked for once; null if the stage has no data.
  virtual std::shared_ptr<ImageDataset> dataset(RunningStage stage, const std::vector<std::string>& classes,
                                                ImageDatasetOptions options) = 0;
};

}  // namespace fulgur::detail
