#include "fulgur/images/image_dataset.h"

namespace fulgur {

ImageList ImageList::select(const std::vector<int64_t>& indices) const {
  ImageList part{.root = root, .files = {}, .labels = {}, .classes = classes};
  part.files.reserve(indices.size());
  part.labels.reserve(labels.empty() ? 0 : indices.size());
  for (const int64_t index : indices) {
    part.files.push_back(files.at(static_cast<size_t>(index)));
    if (!labels.empty()) part.labels.push_back(labels.at(static_cast<size_t>(index)));
  }
  return part;
}

}  // namespace fulgur
