#include "process/run_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/system/program_name.h"
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
    int64_t number = -1;
    const char* begin = name.data() + kVersionPrefix.size();
    const char* end = name.data() + name.size();
    if (const auto [rest, bad] = std::from_chars(begin, end, number); bad == std::errc() && rest == end && number >= 0)
      versions.push_back(number);
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
    if (entry->path().extension() == ".ckpt" && fs::exists(entry->path(), ignored)) return true;
  }
  return false;
}

// A fit creates the folder of its checkpoints first; one that was killed before that has only its lock.
bool is_of_fit(const fs::path& run_dir) {
  std::error_code error;
  if (fs::is_directory(checkpoint_folder_of(run_dir), error)) return true;
  fs::directory_iterator entries(run_dir, error);
  return !error && std::all_of(begin(entries), end(entries),
                               [](const auto& entry) { return entry.path().filename() == "run.lock"; });
}

// Whether another process is using the folder.
bool is_locked(const fs::path& run_dir) {
  std::error_code error;
  if (!fs::exists(run_dir / "run.lock", error)) return false;
  try {
    const RunLock lock(run_dir);
    return false;
  } catch (const ConfigError&) {
    return true;
  }
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
  std::error_code error;
  if (name.version) {
    found.folder = parent / cat(kVersionPrefix, *name.version);
    if (is_of_fit(found.folder) || is_done(found.folder)) return found;
    return std::nullopt;
  }
  for (const int64_t version : versions_in(parent)) {
    found.folder = parent / cat(kVersionPrefix, version);
    if (has_checkpoint(found.folder) || is_done(found.folder)) return found;
    if (fs::is_directory(checkpoint_folder_of(found.folder), error) && is_locked(found.folder)) return found;
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

fs::path checkpoint_folder_of(const fs::path& run_dir) { return run_dir / "checkpoints"; }

fs::path find_checkpoint(const std::string& choice, const fs::path& root, const RunName& name,
                         const fs::path& config_folder) {
  if (choice != "last" && choice != "best") return choice;
  const std::string link = choice + ".ckpt";
  if (!config_folder.empty() && fs::is_directory(checkpoint_folder_of(config_folder))) {
    const fs::path path = checkpoint_folder_of(config_folder) / link;
    if (fs::exists(path)) return path;
    throw CheckpointError(
        cat("[trainer.ckpt_path] ", config_folder, " has no ", link, ". Give the path of a checkpoint."));
  }
  const fs::path parent = (root / name.name).lexically_normal();
  for (const int64_t version : versions_in(parent)) {
    if (name.version && version != *name.version) continue;
    const fs::path folder = checkpoint_folder_of(parent / cat(kVersionPrefix, version));
    if (fs::exists(folder / link)) return folder / link;
    // A newer run that has checkpoints but no best one must not be skipped silently.
    if (fs::exists(folder / "last.ckpt"))
      throw CheckpointError(
          cat("[trainer.ckpt_path] ", folder, " has no ", link,
              ": its run never logged the metric that ModelCheckpoint monitors. Use --ckpt_path last or a path."));
  }
  const std::string where = name.version ? cat(parent / cat(kVersionPrefix, *name.version), " has no checkpoint '")
                                         : cat("no run under ", parent, " has a checkpoint '");
  throw CheckpointError(cat("[trainer.ckpt_path] ", where, choice, "'. Run `", program_name(),
                            " fit` first, or give the path of a checkpoint."));
}

}  // namespace fulgur::detail
