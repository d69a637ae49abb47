#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/images/image_data_modules.h"
#include "modules/image_sets.h"

namespace fulgur::detail {

/// How lists of files are made from the paths that an image data module has.
struct ImageLister {
  std::filesystem::path train;
  std::optional<std::filesystem::path> val, test, predict;
  /// Names of the options with these paths, for errors: `train_dir`, ….
  std::string suffix;
  std::function<std::vector<std::string>()> classes;  ///< from `train`
  /// With labels; `classes` are those of the training data.
  std::function<ImageList(const std::filesystem::path&, const std::vector<std::string>& classes)> labelled;
  std::function<ImageList(const std::filesystem::path&)> unlabelled;
};

/// Data sets of files. Throws a ConfigError if `split` contradicts the paths; `module` names the data module.
std::unique_ptr<ImageSets> listed_sets(const std::string& module, ImageLister lister, const ImageSplitOptions& split,
                                       const ImageReadingOptions& reading);

}  // namespace fulgur::detail
