#include "process/run_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kVersionPrefix = "version_";

// Numbers of the version folders in `folder`, newest first.
std::vector<int64_t> versions_in(const fs::path& folder) {
  std::vector<int64_t> versions;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kVersionPrefix)) continue;
    const auto number = parse_whole<int64_t>(std::string_view(name).substr(kVersionPrefix.size()));
    if (number && *number >= 0) versions.push_back(*number);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

bool has_checkpoint(const fs::path& run_dir) {
  std::error_code error;
  for (fs::directory_iterator entry(checkpoint_folder_of(run_dir), error), end; !error && entry != end;
       entry.increment(error)) {
    // A link may point to a checkpoint elsewhere (ModelCheckpoint.dirpath); a link without a target does not count.
    std::error_code ignored;
    if (entry->path().extension() == run_layout::kExtension && fs::exists(entry->path(), ignored)) return true;
  }
  return false;
}

// A fit creates the folder of its checkpoints first; one that was killed before that has only its lock.
bool is_of_fit(const fs::path& run_dir) {
  if (has_checkpoint_folder(run_dir)) return true;
  std::error_code error;
  fs::directory_iterator entries(run_dir, error);
  return !error && std::all_of(begin(entries), end(entries),
                               [](const auto& entry) { return entry.path().filename() == "run.lock"; });
}

}  // namespace

fs::path take_run_folder(const fs::path& root, const RunName& name) {
  const fs::path parent = (root / name.name).lexically_normal();
  std::error_code error;
  fs::create_directories(parent, error);
  if (error)
    throw ConfigError(cat("[trainer.run_folder] cannot create ", parent, ": ", error.message(),
                          ". Choose another trainer.default_root_dir."));
  const auto existing = versions_in(parent);
  int64_t number = name.version.value_or(existing.empty() ? 0 : existing.front() + 1);
  for (;; ++number) {
    const fs::path folder = parent / cat(kVersionPrefix, number);
    if (mkdir(folder.c_str(), 0755) == 0) return folder;
    if (errno != EEXIST)
      throw ConfigError(cat("[trainer.run_folder] cannot create ", folder, ": ", std::strerror(errno),
                            ". Choose another trainer.default_root_dir."));
    if (name.version)
      throw ConfigError(cat("[trainer.run_folder] ", folder,
                            " already exists. Choose another version, or leave it out; --resume continues a fit in "
                            "it."));
  }
}

bool is_taken(const fs::path& root, const RunName& name) {
  return name.version && fs::exists(root / name.name / cat(kVersionPrefix, *name.version));
}

std::optional<RunToResume> newest_run_to_resume(const fs::path& root, const RunName& name,
                                                const std::function<bool(const fs::path&)>& is_done) {
  const fs::path parent = (root / name.name).lexically_normal();
  RunToResume found;
  if (name.version) {
    found.folder = parent / cat(kVersionPrefix, *name.version);
    if (is_of_fit(found.folder) || is_done(found.folder)) return found;
    return std::nullopt;
  }
  bool begun = false;  // a newer fit, which ended before its first checkpoint
  for (const int64_t version : versions_in(parent)) {
    found.folder = parent / cat(kVersionPrefix, version);
    std::error_code error;
    // A fit that began after another one had finished is not its continuation.
    if (begun && fs::exists(found.folder / run_layout::kFinished, error)) break;
    if (has_checkpoint(found.folder) || is_done(found.folder)) return found;
    if (has_checkpoint_folder(found.folder) && RunLock::is_held(found.folder)) return found;
    begun = begun || has_checkpoint_folder(found.folder);
    found.passed_over.push_back(found.folder.filename().string());
  }
  return std::nullopt;
}

fs::path newest_run_folder(const fs::path& root, const RunName& name) {
  const fs::path parent = (root / name.name).lexically_normal();
  if (name.version) return parent / cat(kVersionPrefix, *name.version);
  const auto versions = versions_in(parent);
  return versions.empty() ? fs::path() : parent / cat(kVersionPrefix, versions.front());
}

std::vector<fs::path> run_folders(const fs::path& root, const RunName& name) {
  const fs::path parent = (root / name.name).lexically_normal();
  std::vector<fs::path> folders;
  for (const int64_t version : versions_in(parent))
    if (!name.version || version == *name.version) folders.push_back(parent / cat(kVersionPrefix, version));
  return folders;
}

void remove_unused_folder(const fs::path& run_dir) noexcept {
  constexpr std::string_view kNames[] = {run_layout::kConfig, run_layout::kFailed, run_layout::kCheckpoints,
                                         "run.lock",          "metrics.csv",       "metrics.jsonl",
                                         "hparams.yaml",      "hparams.json"};
  constexpr std::string_view kBegins[] = {"events.out.tfevents.", "rank_", "."};
  try {
    std::error_code error;
    for (fs::recursive_directory_iterator file(run_dir, error), end; !error && file != end; file.increment(error)) {
      const std::string name = file->path().filename().string();
      const bool is_usual =
          std::ranges::find(kNames, name) != std::end(kNames) ||
          std::ranges::any_of(kBegins, [&](std::string_view begin) { return name.starts_with(begin); });
      if (!is_usual) return;
    }
    if (error) return;
    fs::remove_all(run_dir, error);
    if (error) fs::remove_all(run_dir, error);  // another rank has begun its log meanwhile
  } catch (const std::exception&) {
    // The folder stays, and `runs` lists it as failed.
  }
}

fs::path checkpoint_folder_of(const fs::path& run_dir) { return run_dir / run_layout::kCheckpoints; }

bool has_checkpoint_folder(const fs::path& run_dir) {
  std::error_code error;
  return !run_dir.empty() && fs::is_directory(checkpoint_folder_of(run_dir), error);
}

}  // namespace fulgur::detail
