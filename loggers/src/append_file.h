#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace fulgur {

/// A text file that grows by whole rows. What cannot be written (read-only folder, full disk) is tried again with the next
/// flush, up to 1 MiB of it; a row is in the file as a whole or not at all. Nothing here throws.
class AppendFile {
 public:
  AppendFile() = default;
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Appends to `path` from now on. What waited for an earlier file is written to that first, or lost.
  void open(std::filesystem::path path);
  const std::filesystem::path& path() const { return path_; }
  void add(std::string_view row);
  /// False where rows still wait; `error` then says why.
  bool flush() noexcept;
  const std::string& error() const { return error_; }
  void close() noexcept;

 private:
  bool fail(const char* action) noexcept;
  std::filesystem::path path_;
  int file_ = -1;
  int64_t good_size_ = 0;
  std::string waiting_;
  std::string error_;
};

/// Writes `path` by a temporary sibling and a rename: readers see the old file or the new one. `write` gives the content
/// in parts to its argument. Returns what went wrong, or nothing; the old file is then as it was.
std::string replace_file(const std::filesystem::path& path, const std::function<void(const std::function<void(std::string_view)>&)>& write);

}  // namespace fulgur
