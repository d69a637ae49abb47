#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/unique_fd.h"

namespace fulgur::detail {

/// A folder that has a hidden name next to its final one until it is complete. A process that writes it holds a lock,
/// so what a killed one has left is removed. The destructor removes what was not published. A system call that fails is
/// a FileError.
class NewFolder {
 public:
  /// Throws a ConfigError if `folder` exists or another process writes it.
  explicit NewFolder(std::filesystem::path folder);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& hidden() const { return hidden_; }
  /// Syncs the folder and renames it; its files have been synced.
  void publish();

 private:
  std::filesystem::path folder_, hidden_;
  UniqueFd lock_;
  bool published_ = false;
};

/// A new file that is written with a buffer, from its beginning. Every failure is a FileError.
class NewDataFile {
 public:
  explicit NewDataFile(const std::filesystem::path& path);
  void write(const void* data, size_t bytes);
  /// Writes the buffer, syncs the file, and closes it.
  void commit();
  /// CRC-32 of what was written.
  uint32_t checksum() const { return checksum_; }

 private:
  void flush();
  DurableFile file_;
  std::vector<char> buffer_;
  uint32_t checksum_ = 0;
};

}  // namespace fulgur::detail
