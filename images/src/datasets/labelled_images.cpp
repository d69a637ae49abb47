#include "fulgur/images/labelled_images.h"

#include <algorithm>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/labelled_rows.h"
#include "fulgur/data/missing_classes.h"

namespace fulgur {
namespace {

constexpr int64_t kMostClasses = 1'000'000;

// Whole numbers are classes from 0 to the largest of them, although images of some may be absent.
std::vector<std::string> classes_of_images(const std::filesystem::path& path, const detail::LabelledRows& images) {
  if (!images.labels_are_numbers()) return images.classes();
  int64_t largest = 0;
  std::vector<int64_t> labels;
  for (const detail::LabelledRow& image : images.rows()) {
    const int64_t label = *parse_whole<int64_t>(image.label);
    if (label < 0 || label >= kMostClasses)
      images.fail(image.line, cat("labels must be in [0, ", kMostClasses, "); got ", label));
    largest = std::max(largest, label);
    labels.push_back(label);
  }
  detail::warn_missing_classes(path.string(), labels, largest + 1);
  std::vector<std::string> classes;
  for (int64_t label = 0; label <= largest; ++label) classes.push_back(std::to_string(label));
  return classes;
}

}  // namespace

ImageList read_labelled_images(const std::filesystem::path& path, const LabelledImagesOptions& options) {
  const detail::LabelledRows images(path, {.reader = "images.read_labelled_images",
                                           .value_column = options.file_column,
                                           .label_column = options.label_column,
                                           .reads_labels = options.labels,
                                           .values_are_texts = false});
  ImageList list{.root = options.root.empty() ? path.parent_path() : options.root,
                 .files = {},
                 .labels = {},
                 .classes = options.classes};
  list.files.reserve(images.rows().size());
  for (const detail::LabelledRow& image : images.rows()) {
    if (image.value.empty())
      images.fail(image.line, cat("the column '", options.file_column, "' must name a file; it is empty"));
    list.files.push_back(image.value);
  }
  if (!options.labels) return list;
  if (list.classes.empty()) list.classes = classes_of_images(path, images);
  list.labels = images.labels_in(list.classes, [&](const detail::LabelledRow& image) {
    images.fail(image.line, cat("labels must be classes of the training data, of which there are ", list.classes.size(),
                                "; got '", escape_controls(image.label), "'", did_you_mean(image.label, list.classes)));
  });
  return list;
}

}  // namespace fulgur
