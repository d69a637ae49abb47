#pragma once

// Free of LibTorch.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct zip;

namespace fulgur::detail {

/// Writes a zip archive of entries that are stored as they are, their data at multiples of 64 bytes, as torch.save does
/// it (Python can then map them). The same entries give the same bytes. Throws CheckpointErrors that name the path.
class ZipWriter {
 public:
  /// A file of that name must not be there yet.
  explicit ZipWriter(std::filesystem::path path);
  /// Adds an entry, whose bytes must stay where they are until commit().
  void add(const std::string& name, const void* data, uint64_t bytes);
  /// Writes and syncs the file. Where that fails there is none.
  void commit();

 private:
  struct Closer {
    void operator()(zip* archive) const;
  };
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  std::unique_ptr<zip, Closer> archive_;
  uint64_t offset_ = 0;  // where the next local header will be
};

}  // namespace fulgur::detail
