#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/system/unique_fd.h"

namespace fulgur::detail {

/// A folder that has a hidden name next to its final one until it is complete. A process that writes it holds a lock,
/// so what a killed one has left is removed. The destructor removes what was not published.
class NewFolder {
 public:
  /// Throws a ConfigError if `folder` exists or another process writes it, and an Error if it cannot be created.
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

/// A new file that is written with a buffer, from its beginning. Every failure is an Error that names the file.
class NewDataFile {
 public:
  explicit NewDataFile(std::filesystem::path path);
  void write(const void* data, size_t bytes);
  /// Writes the buffer, syncs the file, and closes it.
  void commit();
  uint64_t bytes() const { return bytes_; }
  /// CRC-32 of what was written.
  uint32_t checksum() const { return checksum_; }

 private:
  void flush();
  std::filesystem::path path_;
  UniqueFd fd_;
  std::vector<char> buffer_;
  uint64_t bytes_ = 0;
  uint32_t checksum_ = 0;
};

}  // namespace fulgur::detail
