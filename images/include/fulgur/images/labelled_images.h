#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/images/image_dataset.h"

namespace fulgur {

/// How a file with paths and labels is read.
struct FULGUR_API LabelledImagesOptions {
  std::filesystem::path root = {};  ///< folder of relative paths; empty: the folder of the file itself
  std::string file_column = "file";
  std::string label_column = "label";
  bool labels = true;  ///< false: the label column is not read, and may be absent
  /// The classes, in order; empty: those of the labels. A label that is not among them is a DataError.
  std::vector<std::string> classes = {};
};

/// The images that a CSV file (RFC 4180, with a header line) or a JSONL file (an object per line) names, in its order;
/// a file whose first character is `{` is JSONL. Other columns and keys are ignored.
///
/// If every label is an integer, labels are classes 0 to the largest one, named by their numbers. Otherwise they are
/// names, and the classes are sorted by the bytes of the names. Throws a DataError with the line for a missing column,
/// a line with another number of columns, invalid JSON, an empty path, or a label that is empty, negative or unknown.
FULGUR_API ImageList read_labelled_images(const std::filesystem::path& file, const LabelledImagesOptions& options = {});

}  // namespace fulgur
