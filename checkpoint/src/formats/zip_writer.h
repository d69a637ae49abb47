#pragma once

// Independent of LibTorch.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct zip;

namespace fulgur::detail {

/// Writes a zip archive of uncompressed entries with their data at multiples of 64 bytes, like torch.save (so that
/// Python can mmap them). The same entries give the same bytes. Throws CheckpointErrors that name the path.
class ZipWriter {
 public:
  /// A file with that name must not exist yet.
  explicit ZipWriter(std::filesystem::path path);
  /// Adds an entry, whose bytes must stay valid until commit().
  void add(const std::string& name, const void* data, uint64_t bytes);
  /// Writes and syncs the file. On failure no file is left.
  void commit();

 private:
  struct Closer {
    void operator()(zip* archive) const;
  };
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  std::unique_ptr<zip, Closer> archive_;
  uint64_t offset_ = 0;  // position of the next local header
};

}  // namespace fulgur::detail
