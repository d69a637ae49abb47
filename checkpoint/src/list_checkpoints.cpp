#include <algorithm>
#include <charconv>
#include <tuple>

#include "checked_folder.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "io/manifest.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

// The number after the last `mark` in a name, if it is there.
int64_t number_after(std::string_view name, std::string_view mark) {
  const size_t place = name.rfind(mark);
  int64_t number = 0;
  if (place != std::string_view::npos)
    std::from_chars(name.data() + place + mark.size(), name.data() + name.size(), number);
  return number;
}

}  // namespace

CheckpointSummary summarize_checkpoint(const fs::path& path) {
  detail::CheckedFolder folder(path);
  folder.check_names_and_sizes();
  if (!folder.problems().empty())
    throw CheckpointError(cat("[checkpoint.read] ", escape_controls(path.string()), " is damaged:\n",
                              detail::text_of(folder.problems())));
  const detail::Manifest& manifest = folder.manifest();
  return {path, manifest.epoch, manifest.global_step, manifest.weights_only, manifest.origin, std::nullopt};
}

std::vector<CheckpointSummary> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointSummary> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path path = entry->path();
    std::error_code ignored;
    if (path.extension() != run_layout::kExtension || entry->is_symlink(ignored) ||
        detail::is_temporary(path.filename().string()))
      continue;
    try {
      found.push_back(summarize_checkpoint(path));
    } catch (const std::exception& problem) {
      CheckpointSummary& bad = found.emplace_back();
      bad.path = path;
      bad.global_step = number_after(path.stem().string(), "step=");
      bad.problem = problem.what();
    }
  }
  if (error && error != std::errc::no_such_file_or_directory)
    detail::throw_errno("listing checkpoints", folder, error.value());
  const auto key = [](const CheckpointSummary& item) {
    const std::string stem = item.path.stem().string();
    return std::tuple(item.global_step, item.origin.save_counter, number_after(stem, "-v"), stem);
  };
  std::ranges::sort(found, [&](const auto& a, const auto& b) { return key(a) > key(b); });
  return found;
}

std::string checkpoint_name(const fs::path& checkpoint) {
  std::string name = checkpoint.stem().string();
  const size_t mark = name.rfind("-v");
  const bool numbered = mark != std::string::npos && mark + 2 < name.size() &&
                        name.find_first_not_of("0123456789", mark + 2) == std::string::npos;
  return numbered ? name.substr(0, mark) : name;
}

std::vector<fs::path> checkpoints_named(const fs::path& folder, std::string_view name) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    if (item->path().extension() != run_layout::kExtension) continue;
    // A name that itself ends with `-vN` is a name, too.
    if (item->path().stem() != name && checkpoint_name(item->path()) != name) continue;
    // Without this file it is not a checkpoint, whatever its name.
    std::error_code missing;
    const auto time = fs::last_write_time(item->path() / detail::kStateFile, missing);
    if (!missing && !item->is_symlink(missing)) found.emplace_back(time, item->path());
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<fs::path> paths;
  for (auto& [time, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace fulgur
