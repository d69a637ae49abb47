#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fulgur::detail {

/// A regular file that is read in order. FIFOs, folders and devices are refused without blocking.
class InputFile {
 public:
  /// Throws a CheckpointError if it cannot be opened.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  uint64_t size() const { return size_; }
  /// The next `bytes` bytes; throws if there are fewer.
  void read(void* data, uint64_t bytes);
  /// The next read begins there.
  void move_to(uint64_t position);
  /// What the file looks like, judging by its first bytes, as a sentence with a leading space; empty if not recognised.
  std::string looks_like() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// The contents of a regular file of at most `limit` bytes.
std::string read_file(const std::filesystem::path& path, uint64_t limit);

}  // namespace fulgur::detail
