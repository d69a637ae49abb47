#pragma once

// Free of LibTorch, so that it can be fuzzed on its own.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

struct zip;
struct zip_source;

namespace fulgur::detail {

/// A zip archive of entries that are stored as they are, as torch.save writes it. Compressed or encrypted ones, names
/// that stand in it twice or lead out of the archive, and entries that lie over each other are refused, all with
/// CheckpointErrors.
class ZipReader {
 public:
  struct Entry {
    uint64_t index = 0, bytes = 0;
  };

  /// Opens a regular file.
  explicit ZipReader(const std::filesystem::path& path);
  /// An archive in memory, which must outlive the reader.
  explicit ZipReader(std::string_view archive);

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  /// The bytes of `entry`, after its CRC-32 was compared, into `data`, which has room for them.
  void read(const std::string& name, const Entry& entry, void* data) const;

 private:
  struct Closer {
    void operator()(zip* archive) const;
  };
  void open(zip_source* source, uint64_t bytes);
  void list(uint64_t bytes);
  std::unique_ptr<zip, Closer> archive_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace fulgur::detail
