#pragma once

#include <filesystem>

#include "fulgur/core/export.h"

namespace fulgur {

/// Reserves a run folder for one process: creates `run.lock` in it, with pid and host, and locks the file with flock
/// for the lifetime of this object.
///
/// A lock whose holder died is taken over, with a warning. flock detects that at once; if a child of the dead process
/// still holds it, or the file system does not support flock, the pid decides if the host is this one.
class FULGUR_API RunLock {
 public:
  /// Throws a ConfigError that names pid and host if another process (or another RunLock) holds the folder, and a
  /// CheckpointError if the file cannot be created. `folder` must exist.
  explicit RunLock(const std::filesystem::path& folder);
  /// Whether the constructor would refuse the folder now. It does not take the lock, so processes that ask do not get
  /// in each other's way.
  static bool is_held(const std::filesystem::path& folder);
  /// Releases the lock and removes the file.
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  const std::filesystem::path& path() const { return path_; }

 private:
  void release() noexcept;
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace fulgur
