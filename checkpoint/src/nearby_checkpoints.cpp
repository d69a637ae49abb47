#include "nearby_checkpoints.h"

#include <algorithm>
#include <vector>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "io/manifest.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostShown = 3, kMostFolders = 64;

// Names with numbers: `step=100` comes before `step=20`.
bool higher(const fs::path& a, const fs::path& b) {
  const std::string x = a.filename().string(), y = b.filename().string();
  return x.size() != y.size() ? x.size() > y.size() : x > y;
}

// Not by reading them: an error is being reported, and they may be damaged.
std::vector<fs::path> checkpoints_directly_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.extension() == run_layout::kExtension && !entry->is_symlink(ignored) &&
        !is_temporary(path.filename().string()) && fs::is_regular_file(path / kManifestFile, ignored))
      found.push_back(path);
  }
  std::ranges::sort(found, higher);
  return found;
}

std::vector<fs::path> checkpoints_of(const fs::path& folder) {
  std::vector<fs::path> found = checkpoints_directly_in(folder);
  return found.empty() ? checkpoints_directly_in(folder / run_layout::kCheckpoints) : found;
}

// Those of the folder, or else of the run folders in it, the newest first.
std::vector<fs::path> checkpoints_below(const fs::path& folder) {
  std::vector<fs::path> found = checkpoints_of(folder);
  if (!found.empty()) return found;
  std::vector<fs::path> folders;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->is_directory(ignored) && folders.size() < kMostFolders) folders.push_back(entry->path());
  std::ranges::sort(folders, higher);
  for (const fs::path& each : folders) {
    const std::vector<fs::path> more = checkpoints_of(each);
    found.insert(found.end(), more.begin(), more.end());
    if (found.size() > kMostShown) break;
  }
  return found;
}

// The folder above; empty if there is none in the path as it was written.
fs::path above(const fs::path& path) {
  const fs::path parent = path.parent_path();
  if (parent == path || path == ".") return {};
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

std::string nearby_checkpoints(const fs::path& wanted) {
  std::error_code ignored;
  fs::path folder = wanted.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // it ended in a slash
  while (!folder.empty() && !fs::is_directory(folder, ignored)) folder = above(folder);
  std::vector<fs::path> found;
  while (!folder.empty()) {
    found = checkpoints_below(folder);
    const std::string name = folder.filename().string();
    // Only from within a run folder are other folders of interest.
    if (!found.empty() || !(name == run_layout::kCheckpoints || name.starts_with("version_"))) break;
    folder = above(folder);
  }
  if (found.empty()) return {};
  std::vector<std::string> shown;
  for (const fs::path& path : found) shown.push_back(escape_controls(path.string()));
  return cat(" Checkpoints nearby: ", join_some(shown, kMostShown), ".");
}

}  // namespace fulgur::detail
