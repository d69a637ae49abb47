#include "fulgur/images/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

/// A folder, relative to where the walk began, and a name in it.
using PlacedName = std::pair<std::string, std::string>;

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

/// What is in the folder and not hidden, sorted by name.
std::vector<FolderEntry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<FolderEntry> entries;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    FolderEntry entry{.name = at->path().filename().string()};
    if (entry.name.starts_with('.')) continue;
    std::error_code none;
    entry.is_folder = at->is_directory(none);  // of a link: what it leads to
    entries.push_back(std::move(entry));
  }
  if (error)
    throw DataError(cat("[images.ImageFolder] the folder must be readable; ", escape_controls(folder.string()), ": ",
                        error.message(), ". Check the path."));
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

class ImageWalk {
 public:
  ImageWalk(const fs::path& root, const ImageFolderOptions& options) : root_(root) {
    for (const std::string& suffix : options.suffixes)
      suffixes_.insert(lower(suffix.starts_with('.') ? suffix : "." + suffix));
  }

  /// Images in the folder `start` of the root and below, sorted by folder and name, with `start` in their paths.
  std::vector<std::string> files(const std::string& start) {
    std::vector<PlacedName> found;
    std::set<std::pair<dev_t, ino_t>> seen;
    std::vector<std::string> left{start};
    while (!left.empty()) {
      const std::string folder = std::move(left.back());
      left.pop_back();
      struct stat status {};
      if (::stat((root_ / folder).c_str(), &status) == 0 && !seen.emplace(status.st_dev, status.st_ino).second)
        continue;
      std::vector<FolderEntry> entries = entries_of(root_ / folder);
      // The last one is taken first.
      std::ranges::reverse(entries);
      for (const FolderEntry& entry : entries) {
        if (entry.is_folder)
          left.push_back(folder.empty() ? entry.name : folder + "/" + entry.name);
        else if (suffixes_.contains(lower(fs::path(entry.name).extension().string())))
          found.emplace_back(folder, entry.name);
        else
          ++others_[lower(fs::path(entry.name).extension().string())];
      }
    }
    std::ranges::sort(found);
    std::vector<std::string> paths;
    paths.reserve(found.size());
    for (const auto& [folder, name] : found) paths.push_back(folder.empty() ? name : folder + "/" + name);
    return paths;
  }

  /// What was ignored, for errors.
  std::string others() const {
    std::vector<std::string> parts;
    for (const auto& [suffix, count] : others_)
      parts.push_back(cat(count, " ", suffix.empty() ? "without suffix" : escape_controls(suffix)));
    return parts.empty() ? "" : cat(" Other files were ignored: ", join_some(std::move(parts), 8), ".");
  }

 private:
  const fs::path& root_;
  std::set<std::string, std::less<>> suffixes_;
  std::map<std::string, int64_t> others_;
};

std::string suffixes_text(const ImageFolderOptions& options) { return join(options.suffixes); }

}  // namespace

std::vector<std::string> image_folder_classes(const fs::path& root) {
  std::vector<std::string> classes;
  for (FolderEntry& entry : entries_of(root)) {
    if (!entry.is_folder) continue;
    if (!is_utf8(entry.name))
      throw DataError(cat("[images.ImageFolder] names of classes must be UTF-8; ",
                          escape_controls((root / entry.name).string()), " is not. Rename the folder."));
    classes.push_back(std::move(entry.name));
  }
  if (classes.empty())
    throw DataError(cat("[images.ImageFolder] the folder must have a folder for each class; ",
                        escape_controls(root.string()), " has none."));
  return classes;
}

ImageList list_image_folder(const fs::path& root, const ImageFolderOptions& options) {
  ImageList list{.root = root, .files = {}, .labels = {}, .classes = image_folder_classes(root)};
  if (!options.classes.empty()) {
    for (const std::string& found : list.classes)
      if (std::ranges::find(options.classes, found) == options.classes.end())
        throw DataError(cat("[images.ImageFolder] the folder must have the classes of the training data only; ",
                            escape_controls(root.string()), " has '", escape_controls(found), "'",
                            as_sentence(did_you_mean(found, options.classes)), "Rename or remove that folder."));
    const std::vector<std::string> present = std::exchange(list.classes, options.classes);
    std::vector<std::string> absent;
    for (const std::string& name : options.classes)
      if (std::ranges::find(present, name) == present.end()) absent.push_back(escape_controls(name));
    if (!absent.empty() && !options.allow_empty)
      throw DataError(cat("[images.ImageFolder] each class of the training data must have a folder; ",
                          escape_controls(root.string()), " has none for ", join_some(std::move(absent), 20),
                          ". Set allow_empty if these classes have no images there."));
  }
  ImageWalk walk(root, options);
  std::vector<std::string> empty;
  for (size_t label = 0; label < list.classes.size(); ++label) {
    std::error_code none;
    std::vector<std::string> files;
    if (fs::is_directory(root / list.classes[label], none)) files = walk.files(list.classes[label]);
    if (files.empty()) empty.push_back(escape_controls(list.classes[label]));
    list.labels.insert(list.labels.end(), files.size(), static_cast<int64_t>(label));
    std::ranges::move(files, std::back_inserter(list.files));
  }
  if (list.files.empty() || (!empty.empty() && !options.allow_empty))
    throw DataError(cat("[images.ImageFolder] each class must have an image (", suffixes_text(options), "); ",
                        escape_controls(root.string()), " has none for ", join_some(std::move(empty), 20), ".",
                        walk.others(),
                        list.files.empty() ? "" : " Remove these folders, or set allow_empty to keep the classes."));
  return list;
}

ImageList list_images(const fs::path& root, const ImageFolderOptions& options) {
  ImageWalk walk(root, options);
  ImageList list{.root = root, .files = walk.files(""), .labels = {}, .classes = options.classes};
  if (list.files.empty())
    throw DataError(cat("[images.list_images] the folder must have an image (", suffixes_text(options), "); ",
                        escape_controls(root.string()), " has none.", walk.others()));
  return list;
}

ImageFolder::ImageFolder(const fs::path& root, ImageDatasetOptions options, const ImageFolderOptions& which)
    : ImageFolder(list_image_folder(root, which), std::move(options)) {}

ImageFolder::ImageFolder(ImageList list, ImageDatasetOptions options)
    : ImageDataset(list, std::move(options)), classes_(std::move(list.classes)) {}

}  // namespace fulgur
