#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "media/artifact_names.h"
#include "media/media_file.h"

namespace fulgur {

/// The media and artifacts of a logger that writes files: `media/NAME/step=N.png` and `artifacts/FILE` in the run
/// folder. Files are replaced as a whole. Media that cannot be written (read-only folder, full disk) cause one warning
/// and are tried again with the next file, up to 16 MiB of them; what is lost beyond that is counted and reported at
/// the end.
class MediaFiles {
 public:
  /// `component` must outlive this object.
  explicit MediaFiles(const char* component) : component_(component) {}

  /// From now on writes into `log_dir`. Removes media of steps after `resume_step`: a resumed run writes them again.
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step);
  /// Writes a file; one that has the same name and step is replaced. Throws an Error before `start`.
  void log(const MediaRecord& record, int64_t step);
  /// Copies a file or folder, without the links in it, into `artifacts/`, unless it is in the run folder already. An
  /// error is reported, and the run continues. Throws an Error before `start`.
  void keep(const std::filesystem::path& artifact);
  /// Tries again what could not be written.
  void flush();
  /// The end of a run: the last try, then a report of what is lost.
  void finish() noexcept;

 private:
  void require_start(const char* function) const;
  void warn(const std::string& what) const;
  /// The error, or an empty string.
  std::string write(const MediaFile& file) const;
  std::string copy(const std::filesystem::path& artifact);
  /// The error if a folder between the run folder and `path` is a link, which could lead out of it.
  std::string check_links(const std::filesystem::path& path) const;

  const char* component_;
  std::filesystem::path log_dir_;
  ArtifactNames artifact_names_;
  std::deque<MediaFile> waiting_;
  size_t waiting_bytes_ = 0;
  int64_t lost_ = 0;
  int64_t first_lost_ = 0, last_lost_ = 0;  ///< their steps
};

}  // namespace fulgur
