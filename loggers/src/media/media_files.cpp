#include "media/media_files.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "files/append_file.h"
#include "fulgur/core/system/paths.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {
namespace fs = std::filesystem;

constexpr size_t kMostMediaWaiting = 16 << 20;

/// Removes media of steps after `step` below `folder`.
void remove_media_after(const fs::path& folder, int64_t step) {
  std::vector<fs::path> later;
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto of = step_of_media_file(entry->path().filename().string());
    std::error_code ignored;
    if (of && *of > step && fs::is_regular_file(entry->symlink_status(ignored))) later.push_back(entry->path());
  }
  for (const fs::path& path : later) fs::remove(path, error);
}

}  // namespace

void MediaFiles::start(const fs::path& log_dir, std::optional<int64_t> resume_step) {
  lost_ += static_cast<int64_t>(waiting_.size());
  waiting_.clear();
  waiting_bytes_ = 0;
  if (log_dir != log_dir_) artifact_names_ = {};
  log_dir_ = log_dir;
  if (resume_step) remove_media_after(log_dir_ / "media", *resume_step);
}

void MediaFiles::require_start(const char* function) const {
  if (log_dir_.empty()) throw Error(cat("[loggers.", component_, "] start must be called before ", function, "."));
}

void MediaFiles::warn(const std::string& what) const {
  log::warn("logger.media_write",
            cat("[loggers.", component_, "] media are currently not written; ", what, what.ends_with('.') ? "" : ".",
                " The run continues; free space or fix the permissions."));
}

std::string MediaFiles::check_links(const fs::path& path) const {
  fs::path folder = log_dir_;
  for (const fs::path& part : path.parent_path()) {
    folder /= part;
    std::error_code error;
    if (fs::is_symlink(folder, error)) return cat(folder, " is a link, which is not followed");
  }
  return {};
}

std::string MediaFiles::write(const MediaFile& file) const {
  if (std::string error = check_links(file.path); !error.empty()) return error;
  return replace_file(log_dir_ / file.path, [&](const auto& put) { put(file.content); });
}

void MediaFiles::log(const MediaRecord& record, int64_t step) {
  require_start("log_media");
  MediaFile file = media_file(record, step);
  // The last record of a name and step counts, also if an earlier one still waits.
  const auto earlier = std::ranges::find(waiting_, file.path, &MediaFile::path);
  if (earlier != waiting_.end()) {
    waiting_bytes_ -= earlier->content.size();
    waiting_.erase(earlier);
  }
  if (waiting_bytes_ + file.content.size() > kMostMediaWaiting) flush();
  if (waiting_bytes_ + file.content.size() > kMostMediaWaiting && !waiting_.empty()) {
    first_lost_ = lost_ == 0 ? step : std::min(first_lost_, step);
    last_lost_ = lost_ == 0 ? step : std::max(last_lost_, step);
    ++lost_;
    return;
  }
  waiting_bytes_ += file.content.size();
  waiting_.push_back(std::move(file));
  flush();
}

void MediaFiles::flush() {
  // A file that can never be written does not hold up the others.
  std::string first_error;
  for (auto file = waiting_.begin(); file != waiting_.end();) {
    if (const std::string error = write(*file); !error.empty()) {
      if (first_error.empty()) first_error = error;
      ++file;
      continue;
    }
    waiting_bytes_ -= file->content.size();
    file = waiting_.erase(file);
  }
  if (!first_error.empty()) warn(first_error);
}

std::string MediaFiles::copy(const fs::path& artifact) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(artifact, error), run = fs::weakly_canonical(log_dir_, error);
  if (error) return cat("cannot read ", artifact, ": ", error.message());
  if (is_below(from, run)) return {};
  if (is_below(run, from)) return cat(artifact, " contains the run folder");
  if (!fs::exists(from, error)) return cat("cannot read ", artifact, ": it does not exist");
  const fs::path name = fs::path("artifacts") / artifact_names_.name_of(from), to = log_dir_ / name;
  if (std::string link = check_links(name / "."); !link.empty()) return link;
  fs::create_directories(to.parent_path(), error);
  const fs::path temporary = to.string() + ".tmp";
  fs::remove_all(temporary, error);
  error.clear();
  fs::copy(from, temporary, fs::copy_options::recursive | fs::copy_options::skip_symlinks, error);
  // A file is replaced by the rename; a folder must be empty for it.
  if (!error && fs::is_directory(from)) fs::remove_all(to, error);
  if (!error) fs::rename(temporary, to, error);
  if (!error) return {};
  const std::string why = error.message();
  fs::remove_all(temporary, error);
  return cat("cannot copy ", artifact, " to ", to, ": ", why);
}

void MediaFiles::keep(const fs::path& artifact) {
  require_start("log_artifact");
  if (const std::string error = copy(artifact); !error.empty())
    log::error(cat("[loggers.", component_, "] the artifact ", artifact, " is not kept; ", error,
                   ". The run continues; copy it into the run folder yourself."));
}

void MediaFiles::finish() noexcept {
  try {
    if (log_dir_.empty()) return;
    flush();
    for (const MediaFile& file : std::exchange(waiting_, {})) {
      const int64_t step = step_of_media_file(file.path.filename().string()).value_or(0);
      first_lost_ = lost_ == 0 ? step : std::min(first_lost_, step);
      last_lost_ = lost_ == 0 ? step : std::max(last_lost_, step);
      ++lost_;
    }
    waiting_bytes_ = 0;
    if (const int64_t lost = std::exchange(lost_, 0); lost > 0)
      log::error(cat("[loggers.", component_, "] ", counted(lost, "file"), " of media of steps ", first_lost_, " to ",
                     last_lost_, " could not be written to ", log_dir_ / "media", " and ", lost == 1 ? "is" : "are",
                     " lost."));
  } catch (...) {
    // If the report cannot be shown, the run still ends normally.
  }
}

}  // namespace fulgur
