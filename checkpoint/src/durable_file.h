#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// A new file that is written with checked, restarted writes and synced before it counts. Every failure is a
/// CheckpointError with path and errno.
class DurableFile {
 public:
  explicit DurableFile(const std::filesystem::path& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// fsync and close.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Makes renames and new names in `folder` durable.
void sync_folder(const std::filesystem::path& folder);
/// The whole of a regular file of at most `limit` bytes. FIFOs, folders and devices are refused without waiting.
std::string read_file(const std::filesystem::path& path, size_t limit);
/// `what: path: reason of errno` as a CheckpointError.
[[noreturn]] void throw_errno(const std::string& what, const std::filesystem::path& path, int error);

}  // namespace fulgur::detail
