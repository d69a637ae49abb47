#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "fulgur/core/system/unique_fd.h"

struct archive;

namespace fulgur {

/// The regular files of an uncompressed tar archive, one after the other, from a place on. Errors are DataErrors that
/// name the archive.
class TarReader {
 public:
  /// The largest file that is read.
  static constexpr int64_t kMostMemberBytes = int64_t{1} << 30;

  /// `begin`: 0, or a place that place() returned for this archive.
  TarReader(std::filesystem::path path, int64_t begin);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  /// Moves to the next regular file; false at the end, which must be marked as POSIX says: by blocks of zeros, after
  /// which the archive has no other bytes.
  bool next();
  /// Path in the archive of the current file.
  const std::string& name() const { return name_; }
  /// The byte of the archive at which the current file's header begins.
  int64_t place() const { return place_; }
  /// The contents of the current file; call it once.
  std::string read();

 private:
  static ssize_t read_block(struct archive*, void* self, const void** block);
  [[noreturn]] void fail(const std::string& what) const;
  void check_end(int64_t begin) const;
  struct Closer {
    void operator()(struct archive* opened) const;
  };
  std::filesystem::path path_;
  detail::UniqueFd fd_;
  int64_t begin_, position_;  // of the first byte, and of the next one that is read from the file
  std::string block_, name_;
  int64_t place_ = 0;
  std::unique_ptr<struct archive, Closer> archive_;
};

}  // namespace fulgur
