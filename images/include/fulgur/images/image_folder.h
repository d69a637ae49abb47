#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/images/image_dataset.h"

namespace fulgur {

/// Which files of a folder are images.
struct FULGUR_API ImageFolderOptions {
  /// Files with other suffixes are ignored; upper and lower case are equal.
  std::vector<std::string> suffixes = {"jpg", "jpeg", "png", "webp"};
  /// Allows classes without files.
  bool allow_empty = false;
  /// The classes, in order; empty: the folders that exist, sorted by name. A folder that is not among them is a
  /// DataError, and one that is absent is an empty class.
  std::vector<std::string> classes = {};
};

/// The names of the folders in `root`, sorted by their bytes as torchvision sorts them; hidden ones are ignored. Throws
/// a DataError if there are none.
FULGUR_API std::vector<std::string> image_folder_classes(const std::filesystem::path& root);

/// The images in ROOT/CLASS/**/FILE, with the labels and in the order of torchvision's ImageFolder: by class, then by
/// folder, then by name. Links are followed; a folder that is reached twice within a class counts once. Files and
/// folders whose name begins with a dot are ignored. Throws a DataError for a folder that cannot be read and, without
/// `allow_empty`, if a class has no image; it names all such classes.
FULGUR_API ImageList list_image_folder(const std::filesystem::path& root, const ImageFolderOptions& options = {});

/// All images in the folder and the folders below it, without labels, by folder and then by name. Throws a DataError if
/// there are none.
FULGUR_API ImageList list_images(const std::filesystem::path& root, const ImageFolderOptions& options = {});

/// The images of `list_image_folder` as a data set.
class FULGUR_API ImageFolder : public ImageDataset {
 public:
  explicit ImageFolder(const std::filesystem::path& root, ImageDatasetOptions options = {},
                       const ImageFolderOptions& which = {});
  /// Names by label.
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  ImageFolder(ImageList list, ImageDatasetOptions options);
  std::vector<std::string> classes_;
};

}  // namespace fulgur
