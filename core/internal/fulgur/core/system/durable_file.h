#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "fulgur/core/text/errors.h"

namespace fulgur::detail {

/// A system call failed; the message has path and reason.
class FileError : public CheckpointError {
 public:
  FileError(const std::string& message, int reason) : CheckpointError(message), reason_(reason) {}
  /// errno of the call.
  int reason() const noexcept { return reason_; }

 private:
  int reason_;
};

/// A new file, written with checked, restarted writes and synced by `commit`. Every failure is a FileError.
class DurableFile {
 public:
  explicit DurableFile(const std::filesystem::path& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  /// Reserves `bytes` bytes, which is faster and detects a full device at once; ignored by file systems that do not
  /// support it. Exactly that many must be written.
  void reserve(uint64_t bytes);
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// The same at a position in the file; does not change where `write` writes next.
  void write_at(uint64_t place, const void* data, size_t bytes);
  /// fsync and close.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;
  template <class WriteSome>
  void write_all(const void* data, size_t bytes, WriteSome write_some);
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t written_ = 0, started_ = 0;  // bytes written, and bytes whose write-back to the disk has started
};

/// Makes renames and new names in `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// Throws a FileError: `what failed; path: reason.`
[[noreturn]] void throw_errno(const std::string& what, const std::filesystem::path& path, int error);

}  // namespace fulgur::detail
